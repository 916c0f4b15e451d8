"""Remedies in the words of what distributes the script: the runtime, torch itself, Accelerate or Lightning Fabric."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrofit.verify.source.distribution import ACCELERATE, FABRIC, RUNTIME

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule

IN_ACCELERATE = {
    "RF101": "Prepare the loader (accelerator.prepare), or call loader.set_epoch(epoch) in each epoch.",
    "RF103": "loader = accelerator.prepare(loader): it shards the batches.",
    "RF104": "loader = accelerator.prepare(loader): it shards the stream, too.",
    "RF105": "accelerator.gather_for_metrics((predictions, labels)), not accelerator.gather: it drops the padding.",
    "RF106": "Leave even_batches=True, or train inside `with accelerator.join_uneven_inputs([model]):`.",
    "RF109": "set_seed(seed, device_specific=True): each process draws its own augmentation.",
    "RF111": "Prepare the loader without drop_last, and gather with accelerator.gather_for_metrics.",
    "RF201": "model, optimizer = accelerator.prepare(model, optimizer), and call the prepared model.",
    "RF202": "with accelerator.accumulate(model): around forward, backward and step.",
    "RF203": "with accelerator.accumulate(model): around forward, backward and step.",
    "RF209": "model, optimizer = accelerator.prepare(model, optimizer) for each model that is trained.",
    "RF211": "Give accelerator.prepare every model that is trained, or make the tensor a parameter of one of them.",
    "RF301": "accelerator.backward(loss) with the loss of the own batch: gradients are averaged for you.",
    "RF303": "Gather the embeddings with torch.distributed.nn.functional.all_gather before the loss.",
    "RF305": "A prepared scheduler makes num_processes steps per call: count them on the loader before prepare(...).",
    "RF401": "accelerator.reduce(value, reduction='mean') or accelerator.gather_for_metrics, on every process.",
    "RF402": "Call accelerator.gather, reduce and wait_for_everyone on every process, outside of is_main_process.",
    "RF501": "accelerator.save(...), or save under `if accelerator.is_main_process:`.",
    "RF502": "accelerator.unwrap_model(model).state_dict().",
    "RF505": "Log under `if accelerator.is_main_process:`, or with accelerator.log.",
    "RF507": "Prepare all that has a state, or register_for_checkpointing(...); then save_state and load_state.",
}
IN_FABRIC = {
    "RF101": "fabric.setup_dataloaders(loader) sets the epoch of its sampler; of your own one call set_epoch(epoch).",
    "RF103": "loader = fabric.setup_dataloaders(loader): it shards the samples.",
    "RF105": "fabric.setup_dataloaders(loader, use_distributed_sampler=False), and shards without padding.",
    "RF109": "fabric.seed_everything(seed + fabric.global_rank).",
    "RF201": "model, optimizer = fabric.setup(model, optimizer), and call the model that it returns.",
    "RF202": "with fabric.no_backward_sync(model, enabled=is_accumulating): around forward and backward.",
    "RF203": "with fabric.no_backward_sync(model, enabled=is_accumulating): around forward and backward.",
    "RF209": "model, optimizer = fabric.setup(model, optimizer) for each model that is trained.",
    "RF106": "Let fabric.setup_dataloaders set the sampler: it gives every process as many batches.",
    "RF211": "fabric.setup(...) every model that is trained, or make the tensor a parameter of one of them.",
    "RF301": "fabric.backward(loss) with the loss of the own batch: gradients are averaged for you.",
    "RF303": "fabric.all_gather(embeddings, sync_grads=True) before the loss.",
    "RF401": "fabric.all_reduce(value, reduce_op='mean'), on every process.",
    "RF402": "Call fabric.all_gather, all_reduce and barrier on every process, outside of is_global_zero.",
    "RF501": "fabric.save(path, state) on every process, or save under `if fabric.is_global_zero:`.",
    "RF502": "fabric.save(path, {'model': model}): it saves without the wrapper.",
    "RF507": "fabric.save and fabric.load with model, optimizer, scheduler and numbers in one state.",
}
OWN_WORDS = {ACCELERATE: IN_ACCELERATE, FABRIC: IN_FABRIC}


def remedy(rule: Rule, dialect: str) -> str:
    """Return what to write instead, in a script that is distributed by `dialect`."""
    if dialect == RUNTIME:
        return rule.remedy
    return OWN_WORDS.get(dialect, {}).get(rule.code, rule.in_torch)

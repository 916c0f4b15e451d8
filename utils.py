"""What a training of the segmentation project is made of, on any number of GPUs: loaders, model, state, run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import retrofit.distributed as rd
from segmentation.curves import CurveWriter, log_options
from segmentation.datasets import build_dataset, default_num_classes
from segmentation.ema import ModelEMA
from segmentation.models import build_model
from segmentation.options import options_to_save
from segmentation.report import print_classes, print_summary
from segmentation.run_folder import new_run_folder, replace_text, require_log_folder, run_folders


def get_dataloader(args, split):
    """Return this rank's loader of the training set ("train"), or the loader of the whole validation set ("val")."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    dataset = build_dataset(args.dataset, args.dataset_path, split, num_classes, args.crop_size, args.seed)
    loading = rd.data.loader_workers(args.workers)
    loading["pin_memory"] = torch.cuda.is_available() and not args.no_pin_memory
    if split == "train":
        loader = DataLoader(dataset, batch_size=args.batchsize, shuffle=True, drop_last=True, **loading)
        return rd.distribute_loader(loader, seed=args.seed, accum_steps=args.accum_steps)
    batch_size = rd.data.micro_batch(args.batchsize, args.accum_steps) if dataset.image_size else 1
    return DataLoader(dataset, batch_size=batch_size, **loading)


def get_model(args, device):
    """Return the model on `device`, its gradients averaged over all ranks."""
    num_classes = args.numclasses or default_num_classes(args.dataset)
    model = build_model(args.model_type, args.layers, num_classes, args.model_path).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if args.compile:
        model = torch.compile(model)
    unused = args.find_unused_parameters
    return rd.distribute_model(model, args.strategy, sync_batchnorm=args.sync_bn, find_unused_parameters=unused)


def get_ema(args, model):
    """Return the moving average of the weights, None without --ema_decay.

    A sharded model cannot be copied: its average is another one, sharded in the same way.
    """
    if not args.ema_decay:
        return None
    twin = get_model(args, rd.get_device()) if rd.strategies.is_sharded(model) else None
    return ModelEMA(rd.unwrap_model(model), args.ema_decay, twin and rd.unwrap_model(twin))


def get_optimizer(args, model, lr, micro_batch):
    """Return the optimizer of `model`, which --strategy may replace. Collective: every rank."""
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=args.momentum, weight_decay=args.wdecay)
    return rd.strategies.wrap_optimizer(
        model,
        optimizer,
        micro_batch=micro_batch,
        accum_steps=args.accum_steps,
        amp=args.amp,
        clip_grad=args.clip_grad,
    )


@dataclass
class TrainingState:
    """What a checkpoint holds of a training, on this rank."""

    model: torch.nn.Module
    ema: Any
    optimizer: torch.optim.Optimizer
    scaler: Any
    epochs: rd.checkpoint.ResumableEpochs
    scheduler: Any = None
    best_miou: float = 0.0


def save_state(args, state, folder, writer, is_best=False):
    """Write the checkpoint of this position and return its path, None in a dry run. Collective: every rank."""
    if args.dry_run:
        return None
    epochs = state.epochs
    content = {
        "model": state.model,
        "optimizer": state.optimizer,
        "scheduler": state.scheduler,
        "scaler": state.scaler,
        "ema": state.ema,
        "best_miou": state.best_miou,
        "images": epochs.samples,
        "position": epochs,
        "rng_state": epochs.rng_state(),
        "options": options_to_save(args),
    }
    writer.flush()  # the points up to here, which a resumed run does not draw again
    samples = epochs.step * epochs.global_batch
    return rd.checkpoint.save_position(folder, epochs.epoch, samples, is_best=is_best, **content)


def restore_state(state, checkpoint, warm_up):
    """Continue from a checkpoint: bit for bit, unless the number of processes or the batch has changed.

    The scheduler is not restored: its rate follows from the position. Collective: every rank.
    """
    rd.checkpoint.restore_checkpoint(
        checkpoint,
        checkpoint["path"],
        state.model,
        state.optimizer,
        warm_up=warm_up,
        scaler=state.scaler,
        ema=state.ema,
    )
    state.best_miou = checkpoint["best_miou"]
    rd.checkpoint.restore_position(state.epochs, checkpoint, samples=checkpoint.get("images"))


def find_checkpoint(args):
    """Return the content of the checkpoint that --resume means, with its "path"; None to start from the beginning.

    A training's --logdir must be writable: LogFolderError. Collective: every rank.
    """
    if args.task == "train":
        rd.output.answer_of_main(require_log_folder, args.logdir)
        return rd.job.read_resumed(args.resume, run_folders(args.logdir))
    path = rd.checkpoint.find_checkpoint(args.resume or "auto", run_folders(args.logdir), to_train=False)
    return {**rd.checkpoint.read_checkpoint(path, whole=False), "path": path}


def open_run(args, checkpoint, options_text, images):
    """Return the run's folder, the same on every rank, and the writer of its curves; a dry run writes nothing.

    The folder is that of `checkpoint` where its run is continued, else a new one; `options_text` is kept there, for
    --config to make the same training again. `images`: trained on so far. Collective: every rank. Raises what
    `rd.job.open_run` raises.
    """
    if args.dry_run:
        return Path(args.logdir), rd.output.SilentObject()
    name = f"{args.model_type}_r{args.layers}_{args.dataset}"
    folder = rd.job.open_run(run_folders(args.logdir), new_run_folder, args.logdir, name, checkpoint=checkpoint)
    if rd.is_main_process():
        replace_text(folder / "config.yaml", options_text)
    rd.job.keep_rank_log_in(folder)
    return folder, rd.output.on_main_process(make_writer, folder, options_text, images)


def make_writer(folder, options_text, images):
    """Return the writer; what an interrupted run logged after its checkpoint is logged again and replaced."""
    is_continued = images or any(folder.glob("events.*"))
    writer = CurveWriter(folder, images + 1 if is_continued else None)
    log_options(writer, options_text, images + 1)
    return writer


def print_plan(args, state, folder, checkpoint):
    """Say what is about to run."""
    world_size, epochs = rd.get_world_size(), state.epochs
    per_process = epochs.loader.batch_sampler.batch_size
    unit = "process(es)" if rd.get_device().type == "cpu" else "GPU(s)"
    lr = rd.scaled_lr(args.lr, args.accum_steps)
    rd.print_main(
        f"{folder}: {world_size} {unit}, {rd.strategies.resolve_strategy(args.strategy)}, global batch "
        f"{epochs.global_batch} = {per_process} per process x {world_size} x {args.accum_steps} "
        f"accumulation step(s)\nEffective lr: {lr:g} ({args.lr_scale}: {args.lr:g} for a batch of {args.batchsize})"
    )
    if checkpoint:
        done = f"{epochs.epoch} of {args.epochs} epoch(s), {epochs.step} step(s) of the next"
        rd.print_main(f"resumed from {checkpoint['path']}: {done}")


def print_results(state, folder, confusion, class_names, seconds, images):
    """Print the final validation and one table of the run, on rank 0."""
    if not rd.is_main_process():
        return
    if confusion:
        print_classes(confusion, class_names)
    facts = {"run": folder, "epochs": state.epochs.epoch, "processes": rd.get_world_size()}
    facts.update({"global batch": state.epochs.global_batch, "seconds": f"{seconds:.1f}"})
    facts.update({"images/s": f"{images / seconds:.1f}", "best mIoU": f"{state.best_miou:.4f}"})
    print_summary("training", facts)

"""The causes that a verdict can name: what each does to a training, and what to write instead.

`rd` in a remedy is `import retrofit.distributed as rd`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """One mistake of a move to several processes. The name says the bad pattern."""

    code: str
    name: str
    explanation: str  # what it does to the training
    remedy: str  # what to write


_ALL = (
    Cause(
        "RF001",
        "script-fails",
        "the script fails on one process too, so this says nothing about several.",
        "make the script run on one process, with the same arguments, and verify again.",
    ),
    Cause(
        "RF002",
        "not-deterministic",
        "an operator gives another result each time, so two runs of one script differ as well.",
        "call torch.use_deterministic_algorithms(True), or use the deterministic operator that its warning names.",
    ),
    Cause(
        "RF101",
        "set-epoch-missing",
        "every epoch repeats the order of the first one, so the same samples meet in a batch again and again.",
        "call loader.sampler.set_epoch(epoch) at the start of each epoch, or build the loader with "
        "rd.shard_loader(loader).",
    ),
    Cause(
        "RF102",
        "sampler-replaced",
        "the loader's own sampler gave way to a plain one, so samples are drawn by another rule (without their "
        "weights, or in another order).",
        "shard the loader with rd.shard_loader(loader), which keeps its sampler, instead of passing it a "
        "DistributedSampler.",
    ),
    Cause(
        "RF103",
        "loader-not-sharded",
        "ranks train on the same samples: N processes do the work of one, or samples are seen several times per epoch.",
        "build the training loader with rd.shard_loader(loader), or pass it "
        "sampler=DistributedSampler(dataset, seed=the same on every rank).",
    ),
    Cause(
        "RF104",
        "iterable-not-sharded",
        "every rank reads the whole stream, so each sample is trained on once per rank.",
        "in the dataset's __iter__ yield every rd.get_world_size()-th sample only: "
        "itertools.islice(stream, rd.get_rank(), None, rd.get_world_size()).",
    ),
    Cause(
        "RF105",
        "evaluation-padded",
        "DistributedSampler repeats samples until all ranks have equally many, and the metrics count those twice.",
        "build the evaluation loader with rd.shard_eval_loader(loader), and add up sums and counts with "
        "rd.reduce_sum([total, count]).",
    ),
    Cause(
        "RF106",
        "uneven-batches",
        "ranks have different numbers of batches, so the one with more waits for the others for ever.",
        "build the training loader with rd.shard_loader(loader), or drop_last=True: all ranks then have equally many "
        "batches.",
    ),
    Cause(
        "RF107",
        "batch-size-per-process",
        "every process takes the whole batch size, so an optimizer step averages over N times as many samples and an "
        "epoch has N times fewer steps.",
        "divide the batch size by rd.get_world_size() (rd.plan_batch(..., batch='global')), or accept the larger "
        "batch with --accept global_batch.",
    ),
    Cause(
        "RF108",
        "split-differs-by-rank",
        "each rank draws its own split of the data, so one rank trains on what another one validates on.",
        "draw the split with a generator that all ranks seed alike: "
        "random_split(dataset, lengths, torch.Generator().manual_seed(0)).",
    ),
    Cause(
        "RF109",
        "same-random-stream",
        "all ranks draw the same random numbers, so their samples get the same augmentation.",
        "seed each rank differently after weights and splits are drawn: rd.split_random_streams(seed), or seed + rank.",
    ),
    Cause(
        "RF110",
        "dataset-changed-in-place",
        "reading a sample changes it, so what a sample is depends on how often the process has read it.",
        "let __getitem__ work on a copy of what it keeps (array.copy(), tensor.clone()), and the loop on a copy of "
        "what it changes.",
    ),
    Cause(
        "RF111",
        "evaluation-not-exact",
        "the evaluation leaves samples out or counts some more than once, so its result is not that of the data set.",
        "build the evaluation loader with rd.shard_eval_loader(loader), without drop_last.",
    ),
    Cause(
        "RF201",
        "wrapper-bypassed",
        "gradients are not averaged over the ranks, so each process trains a model of its own.",
        "wrap the model with model = rd.wrap_model(model) and run every training forward through model(...), never "
        "through model.module or one of its layers.",
    ),
    Cause(
        "RF202",
        "no-sync-wrong-step",
        "gradients are averaged in another backward than the last before the optimizer step, so the ranks step with "
        "different gradients.",
        "synchronise in the last micro batch of a step: with rd.gradient_sync(model, enabled=is_last): forward and "
        "backward.",
    ),
    Cause(
        "RF203",
        "no-sync-ineffective",
        "gradients are averaged in every backward of an accumulated step: correct, but N times the communication.",
        "put forward and backward of all micro batches but the last inside model.no_sync(): "
        "with rd.gradient_sync(model, enabled=is_last).",
    ),
    Cause(
        "RF204",
        "unused-parameters",
        "some parameters take no part in the loss, and DDP waits for their gradients.",
        "leave such parameters out (requires_grad_(False) before wrapping), or "
        "rd.wrap_model(model, find_unused_parameters=True).",
    ),
    Cause(
        "RF205",
        "buffers-modified-in-place",
        "DDP writes rank 0's buffers into the model before each forward, which spoils an earlier forward that still "
        "waits for its backward.",
        "run both inputs in one forward, or wrap with rd.wrap_model(model, broadcast_buffers=False).",
    ),
    Cause(
        "RF206",
        "batchnorm-not-synchronised",
        "BatchNorm normalises each rank's share by itself, so its statistics come from a smaller batch than before.",
        "convert the model before wrapping it: model = rd.convert_sync_batchnorm(model), or accept it with "
        "--accept batchnorm.",
    ),
    Cause(
        "RF207",
        "wrapper-attribute",
        "the wrapper hides the model's own attributes, and a model without a wrapper has no .module.",
        "use rd.unwrap_model(model).attribute, which works with and without a wrapper, or rd.wrap_model(model), whose "
        "wrapper passes attributes on.",
    ),
    Cause(
        "RF301",
        "loss-scaled-by-world-size",
        "gradients are the number of processes times too large or too small, as if the learning rate were.",
        "DDP averages gradients: a mean over samples needs no factor, a sum over samples needs loss * "
        "rd.get_world_size().",
    ),
    Cause(
        "RF302",
        "loss-averaged-per-rank",
        "each rank averages over its own valid elements and DDP averages those means, so an element on a rank with "
        "few of them weighs more.",
        "divide by the number of all ranks: count, = rd.reduce_sum([valid]); loss = rd.global_mean(loss_sum, count).",
    ),
    Cause(
        "RF303",
        "in-batch-loss-per-rank",
        "the loss compares samples of one batch with each other, and each rank sees its own share of the pairs only.",
        "gather the embeddings of all ranks before the loss, with their gradients (torch.distributed.all_gather drops "
        "them): torch.cat(torch.distributed.nn.all_gather(embeddings)).",
    ),
    Cause(
        "RF304",
        "lr-scaled",
        "the learning rate is multiplied although the global batch is the same.",
        "use the learning rate as it is, or scale it by the batch: "
        "rd.scale_lr(lr, global_batch, reference_batch), which gives factor 1 here.",
    ),
    Cause(
        "RF305",
        "schedule-length",
        "the schedule counts other steps than the optimizer makes, so the learning rate falls too early or too late.",
        "give the scheduler the optimizer steps of the sharded loader (len(loader) after sharding, times epochs), and "
        "call scheduler.step() as often as before.",
    ),
    Cause(
        "RF309",
        "loss-couples-samples",
        "the loss is a function of sums over the whole batch (Dice, IoU, Tversky, the root of a mean), and the average "
        "of what each rank computes of its own share is another loss.",
        "make each sum over the batch one over all ranks, with its gradient: rd.batch_sum((output * target).sum()), or "
        "rd.whole_batch_loss(criterion) for a criterion of a library; in raw DDP torch.distributed.nn.all_reduce.",
    ),
    Cause(
        "RF401",
        "metric-per-rank",
        "a number that stands for the whole data set is computed from one rank's share, and so is what it decides.",
        "add up sums and counts of all ranks first: total, count = rd.reduce_sum([total, count]).",
    ),
    Cause(
        "RF402",
        "collective-on-some-ranks",
        "a collective call needs every rank; some do not come, and the others wait for them for ever.",
        "move what all ranks take part in (a forward through the wrapper, rd.barrier(), rd.reduce_sum, "
        "rd.save_checkpoint) out of the branch for one rank, and evaluate with rd.unwrap_model(model).",
    ),
    Cause(
        "RF501",
        "save-on-every-rank",
        "several processes write the same file at once, which can leave it damaged, or each writes a copy of its own.",
        "save with rd.save_checkpoint(...), called by every rank, or guard the save: if rd.is_main_process(): "
        "torch.save(...).",
    ),
    Cause(
        "RF502",
        "wrapper-prefix-saved",
        "the checkpoint carries the wrapper's prefix, so the script on one process and every other tool cannot load "
        "it.",
        "save rd.unwrap_model(model).state_dict(), or use rd.save_checkpoint, which does.",
    ),
    Cause(
        "RF503",
        "no-map-location",
        "every rank loads the checkpoint onto the GPU it was saved from, which fills up and slows down GPU 0.",
        "torch.load(path, map_location='cpu'), or rd.load_checkpoint(model, optimizer, path).",
    ),
    Cause(
        "RF504",
        "setup-race",
        "several processes prepare the same files at the same time, and one reads what another has not finished.",
        "let rank 0 prepare first: with rd.main_process_first(): download or preprocess.",
    ),
    Cause(
        "RF505",
        "log-on-every-rank",
        "every process writes logs of its own, so curves and lines appear N times.",
        "create the writer on rank 0 only: writer = rd.on_main_process(SummaryWriter, logdir); print with "
        "rd.print_main.",
    ),
    Cause(
        "RF506",
        "log-step-axis",
        "curves are drawn over another count of steps, so they cannot be compared with those of one process.",
        "count optimizer steps (or samples of all ranks) for the axis, as one process does.",
    ),
    Cause(
        "RF507",
        "state-not-restored",
        "something of the training is not in the checkpoint or not put back, so a resumed training is another one.",
        "save and restore model, optimizer, scheduler, epoch and random state: "
        "rd.save_checkpoint(model, optimizer, epoch, path, scheduler=scheduler) and "
        "rd.load_checkpoint(model, optimizer, path, scheduler=scheduler).",
    ),
    Cause(
        "RF601",
        "local-rank-flag",
        "the parser knows one of the two spellings in which launchers pass the local rank, and refuses the other.",
        "rd.add_distributed_arguments(parser), or parser.add_argument('--local_rank', '--local-rank', type=int).",
    ),
    Cause(
        "RF602",
        "port-hard-coded",
        "the script meets at a port of its own, so two trainings on one machine collide.",
        "take the launcher's address: rd.setup_distributed(), or init_process_group(init_method='env://') without "
        "setting MASTER_PORT.",
    ),
    Cause(
        "RF603",
        "object-on-some-ranks",
        "an object exists on rank 0 only, and another rank uses it.",
        "guard the use as well (if rd.is_main_process():), or create it with rd.on_main_process(factory), which takes "
        "every call on the other ranks.",
    ),
    Cause(
        "RF604",
        "device-shared",
        "several processes compute on one GPU while others are idle.",
        "choose the GPU by local rank: torch.cuda.set_device(rd.get_local_rank()), or rd.get_device().",
    ),
)

CAUSES = {cause.code: cause for cause in _ALL}

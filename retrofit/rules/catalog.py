"""The one text of every rule, read by `check`, `convert`, `verify`, `rules` and docs/rules.md.

A rule's name says the bad pattern. In a remedy `rd` is the runtime (`import retrofit.distributed as rd`); `in_torch` is
what to write in a script that distributes itself with torch.distributed and does not use the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

# Where a rule finds something.
SINGLE = "single"  # in a script of one process: `convert` edits it or refuses it (`check` finds it too)
DISTRIBUTED = "distributed"  # only in a script that is distributed already: advice for a person
TRACED = "traced"  # only in what runs do: `verify` names it

_DOCS = "https://docs.pytorch.org/docs/stable/"
_ISSUES = "https://github.com/pytorch/pytorch/issues/"
DDP = _DOCS + "generated/torch.nn.parallel.DistributedDataParallel.html"
DISTRIBUTED_PACKAGE = _DOCS + "distributed.html"
LARGE_BATCH = "Goyal et al. 2017, Accurate, Large Minibatch SGD (linear learning rate scaling), arXiv:1706.02677"
RANDOMNESS = _DOCS + "notes/randomness.html"
SAMPLER = _DOCS + "data.html#torch.utils.data.distributed.DistributedSampler"
SAVING = _DOCS + "notes/serialization.html"
SYNC_BATCHNORM = _DOCS + "generated/torch.nn.SyncBatchNorm.html"
TORCHRUN = _DOCS + "elastic/run.html"


@dataclass(frozen=True)
class Rule:
    """One mistake of a move from one process to several."""

    code: str  # "RF103"; the first digit after RF is the subject, see docs/rules.md
    name: str  # "loader-not-sharded": the bad pattern
    why: str  # what it does to the training
    remedy: str  # what to write with the runtime
    in_torch: str  # what to write with torch.distributed alone
    references: tuple[str, ...] = ()
    found_in: str = SINGLE


_ALL = (
    # --- RF0: the script itself -----------------------------------------------------------------------------------
    Rule(
        "RF001",
        "script-fails",
        "The script fails on one process too, so a run on several processes proves nothing.",
        "Make the script run on one process with the same arguments, then verify again.",
        "Make the script run on one process with the same arguments, then verify again.",
        found_in=TRACED,
    ),
    Rule(
        "RF002",
        "not-deterministic",
        "An operator gives a different result each time, so two runs of the same script differ too.",
        "Call torch.use_deterministic_algorithms(True), or use the deterministic operator that its warning names.",
        "Call torch.use_deterministic_algorithms(True), or use the deterministic operator that its warning names.",
        (RANDOMNESS,),
        found_in=TRACED,
    ),
    Rule(
        "RF003",
        "not-convertible",
        "A conversion that trains something else is worse than none.",
        "See the reason; `retrofit rules CODE` explains what has to change first.",
        "See the reason; `retrofit rules CODE` explains what has to change first.",
    ),
    # --- RF1: data ------------------------------------------------------------------------------------------------
    Rule(
        "RF101",
        "set-epoch-missing",
        "DistributedSampler shuffles by its epoch number: without set_epoch every epoch repeats the order of the first "
        "one, and the same samples are in one batch again and again.",
        "rd.set_epoch(loader, epoch) at the start of each epoch.",
        "loader.sampler.set_epoch(epoch) at the start of each epoch.",
        (SAMPLER, _ISSUES + "31771"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF102",
        "sampler-replaced",
        "A DistributedSampler draws every sample once: the weights, the subset or the order of the sampler it replaces "
        "are lost.",
        "rd.distribute_loader(DataLoader(..., sampler=your_sampler)) keeps the sampler and gives each rank its shard.",
        "Write a sampler that draws from your sampler with one seed on all ranks and yields every world_size-th index.",
        (SAMPLER, _ISSUES + "77154"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF103",
        "loader-not-sharded",
        "The ranks' parts of the data are not disjoint and complete: most often each rank trains on every sample, so N "
        "processes do the work of one N times.",
        "loader = rd.distribute_loader(loader), after the training loader is created.",
        "DataLoader(..., sampler=DistributedSampler(dataset)), with one seed on all ranks, and without shuffle=True.",
        (SAMPLER,),
    ),
    Rule(
        "RF104",
        "iterable-not-sharded",
        "The ranks' parts of the stream are not disjoint and complete: most often each rank reads the whole stream, or "
        "draws all batches of a batch sampler, so each sample is trained on once per rank.",
        "loader = rd.distribute_loader(loader): each rank has its part, and all make as many steps. Every rank still "
        "reads the whole stream; a dataset that yields a part of its own, by rd.get_rank() and rd.get_world_size(), "
        "reads less.",
        "In the dataset's __iter__ yield every world_size-th sample only: "
        "itertools.islice(stream, dist.get_rank(), None, dist.get_world_size()); or use a map-style dataset.",
        (_DOCS + "data.html#torch.utils.data.IterableDataset",),
    ),
    Rule(
        "RF105",
        "evaluation-padded",
        "DistributedSampler repeats samples until all ranks have the same number, and the metrics count those twice.",
        "for batch in rd.share_batches(loader): every sample is evaluated once; add up with rd.sum_over_ranks.",
        "Evaluate dataset[rank::world_size] (torch.utils.data.Subset) without padding, and all_reduce sums and counts.",
        (SAMPLER, _ISSUES + "25162"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF106",
        "uneven-batches",
        "Ranks have different numbers of batches: the rank with one more waits in it for the others forever.",
        "loader = rd.distribute_loader(loader): all ranks then have the same number of batches.",
        "Use DistributedSampler(..., drop_last=True), or train inside `with model.join():`.",
        (DDP, _ISSUES + "38174"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF107",
        "batch-size-per-process",
        "Every process takes the whole batch size, so an optimizer step averages over N times as many samples, and an "
        "epoch has N times fewer steps than the script says.",
        "Pass the loader rd.data.micro_batch(batch_size) with --batch global; for `verify`, --accept global_batch "
        "accepts the larger batch.",
        "Pass the loader batch_size // world_size, or scale the learning rate by the batch of all processes.",
        (LARGE_BATCH,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF108",
        "split-differs-by-rank",
        "Without a common seed every rank draws other data, or splits and shuffles it differently: a training sample "
        "of one rank is another sample, or a test sample, of the next.",
        "rd.share_random_state(), right after rd.setup_distributed().",
        "Seed all ranks the same before the data is built and split: torch.manual_seed(0), the same for random and "
        "numpy, random_split(dataset, lengths, torch.Generator().manual_seed(0)).",
        (RANDOMNESS,),
    ),
    Rule(
        "RF109",
        "same-random-stream",
        "With one seed on all ranks their samples get the same crops, flips, noise and dropout.",
        "rd.random_state.split_random_streams(seed), once weights and splits are drawn; rd.distribute_loader does it "
        "by itself.",
        "torch.manual_seed(seed + rank), and the same for random and numpy, once weights and splits are drawn.",
        (RANDOMNESS,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF110",
        "dataset-changed-in-place",
        "Reading a sample changes it, so what a sample is depends on how often the process has read it.",
        "Let __getitem__ work on a copy of what it keeps (array.copy(), tensor.clone()), and the loop on a copy of "
        "what it changes.",
        "Let __getitem__ work on a copy of what it keeps (array.copy(), tensor.clone()), and the loop on a copy of "
        "what it changes.",
        found_in=TRACED,
    ),
    Rule(
        "RF111",
        "evaluation-not-exact",
        "The evaluation leaves samples out or counts some more than once (with drop_last each rank leaves out its last "
        "batch), so its result is not that of the data set.",
        "for batch in rd.share_batches(DataLoader(dataset, batch_size)), without drop_last.",
        "Evaluate without drop_last and without padding: each sample on one rank, once.",
        (SAMPLER,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF112",
        "batch-size-in-shape",
        "With a global batch of the old size a rank gets its shard of it, and tensors created for all of it do not "
        "fit.",
        "rd.data.own_batch_size(batch_size): the size of this rank's batch, also of an uneven last one.",
        "Create the tensor for len(images), the size of this rank's batch.",
    ),
    Rule(
        "RF113",
        "evaluation-repeated",
        "The result is right, but the evaluation takes as long as on one process, while the training gets faster with "
        "every rank.",
        "for batch in rd.share_batches(loader), and rd.sum_over_ranks(...) of what the loop adds up, after it.",
        "Evaluate every world_size-th batch on each rank, and all_reduce the sums and counts.",
    ),
    Rule(
        "RF114",
        "evaluation-order-per-rank",
        "Ranks that shuffle their evaluation differently, or draw other random numbers in it (a mask, noise), get "
        "other figures, and decide differently about rates, the best weights and the end. With gradients, a loss that "
        "counts the samples of all ranks would count them in an evaluation, too, which every rank runs whole.",
        "for batch in rd.evaluation.same_batches(loader), or shuffle=False.",
        "Evaluate with shuffle=False, and seed what an evaluation draws.",
    ),
    Rule(
        "RF115",
        "draw-not-split",
        "A script that draws its batches itself draws them on every rank: the same ones, so that nothing is gained, or "
        "as many more as there are ranks.",
        "rd.data.own_draw(torch.randint(n, (rd.data.batch_of_ranks(batch_size),))), rd.data.own_part(order[i:j]) for "
        "slices of an order, rd.data.draw_together(torch.randperm, n) for the order.",
        "Draw the indices of all ranks' batch on rank 0, broadcast them, and take indices[rank::world_size].",
    ),
    # --- RF2: model -----------------------------------------------------------------------------------------------
    Rule(
        "RF201",
        "wrapper-bypassed",
        "DDP averages gradients only for a forward pass through its wrapper: without it each rank trains its own "
        "model.",
        "model = rd.distribute_model(model), and every training forward through model(...), never through one of its "
        "layers or methods; what a method computes belongs into forward.",
        "Compute the loss by model(...) of the DDP wrapper, never by model.module or one of its layers; what a method "
        "computes belongs into forward.",
        (DDP,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF202",
        "no-sync-wrong-step",
        "The last batch before an optimizer step is not averaged over the ranks, so each steps with gradients of its "
        "own.",
        "with rd.strategies.gradient_sync(model, enabled=is_last): forward and backward, where is_last also decides "
        "about optimizer.step().",
        "Leave no_sync out in the batch that ends with optimizer.step(): one variable for both tests.",
        (DDP + "#torch.nn.parallel.DistributedDataParallel.no_sync",),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF203",
        "no-sync-ineffective",
        "The result is right, but gradients are averaged in every backward pass of an accumulated step: N times the "
        "communication.",
        "with rd.strategies.gradient_sync(model, enabled=is_last): forward and backward of each micro batch.",
        "Put forward and backward of all micro batches but the last of a step inside `with model.no_sync():`.",
        (DDP + "#torch.nn.parallel.DistributedDataParallel.no_sync", _ISSUES + "43201"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF204",
        "unused-parameters",
        "DDP waits for the gradient of every parameter; one that takes no part in the loss ends the training in step "
        "2.",
        "rd.distribute_model(model), which finds such parameters; or delete the layer.",
        "Delete the layer or set requires_grad_(False) before wrapping; else DDP(model, find_unused_parameters=True).",
        (DDP, _ISSUES + "43259"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF205",
        "buffers-modified-in-place",
        "DDP writes rank 0's buffers (of BatchNorm) into the model before each forward pass, which spoils an earlier "
        "forward pass that still waits for its backward pass.",
        "Run both inputs in one forward pass, or pass rd.distribute_model broadcast_buffers=False.",
        "Run both inputs in one forward pass, or wrap with DDP(model, broadcast_buffers=False).",
        (DDP, _ISSUES + "22095"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF206",
        "batchnorm-not-synchronised",
        "BatchNorm normalises by the statistics of each rank's own shard of the batch, which is another training.",
        "model = rd.distribute_model(model), which takes BatchNorm's statistics over all ranks; for `verify`, --accept "
        "batchnorm accepts the difference.",
        "model = nn.SyncBatchNorm.convert_sync_batchnorm(model) before DDP; leave it where a rank's batch is large "
        "enough.",
        (SYNC_BATCHNORM, _ISSUES + "2584"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF207",
        "wrapper-attribute",
        "A wrapper is of another class and has one child, the model: it hides the model's own attributes, and a model "
        "without a wrapper has no .module.",
        "rd.unwrap_model(model), which works with and without a wrapper; rd.model.run_alone(writer.add_graph, model, "
        "...) for what runs the model on one rank.",
        "model.module.attribute of a wrapped model; keep the inner model under a name of its own: raw_model.",
        (DDP,),
    ),
    Rule(
        "RF208",
        "data-parallel",
        "DataParallel in each process would copy the model to the GPUs of the others, and it is slow even with one "
        "process.",
        "rd.model.data_parallel(nn.DataParallel, model): each of several processes uses its own GPU, the names stay.",
        "DistributedDataParallel(model, device_ids=[local_rank]) in one process per GPU.",
        (_DOCS + "generated/torch.nn.DataParallel.html",),
    ),
    Rule(
        "RF209",
        "model-not-wrapped",
        "Each rank changes its own copy of the model by the gradients of its own samples, and the copies drift apart.",
        "model = rd.distribute_model(model), once it is on its device.",
        "model = DistributedDataParallel(model, device_ids=[local_rank]), once it is on its device.",
        (DDP,),
    ),
    Rule(
        "RF210",
        "hidden-state-carried",
        "The hidden state of a batch's row continues in the same row of the next batch. With the rows sharded, a rank "
        "gets the next row of another text.",
        "Give each rank columns of its own, whole streams: cut the text into streams first, then shard those.",
        "Give each rank columns of its own, whole streams: cut the text into streams first, then shard those.",
    ),
    Rule(
        "RF211",
        "parameter-not-averaged",
        "DDP averages the gradients of its model's parameters only: a tensor outside of it that the optimizer has (the "
        "weights of several losses, a layer replaced later) is trained by each rank alone, or not at all, and weights "
        "that a forward pass changes in place (max_norm) drift apart.",
        "rd.model.distribute_parameter(tensor), where the optimizer is given it.",
        "Make the tensor a parameter of the wrapped model, or all_reduce its gradient before optimizer.step().",
        (DDP,),
    ),
    Rule(
        "RF212",
        "wrapper-discarded",
        "After `model = load(model.module)` nothing averages the gradients any more: each rank trains its own model.",
        "Change rd.unwrap_model(model) in place, or give the inner model a name of its own.",
        "Change model.module in place, or give the inner model a name of its own: raw_model = model.module.",
        (DDP,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF213",
        "weights-drawn-again",
        "Weights that are drawn again after the model is wrapped come from the random numbers of each rank, and "
        "nothing makes them equal any more: the ranks train different models.",
        "rd.data.draw_together(model.reset_parameters): every rank draws the random numbers of rank 0.",
        "Draw before the model is wrapped, or broadcast the parameters of rank 0 after it.",
        (DDP,),
    ),
    Rule(
        "RF214",
        "batchnorm-outside-wrapper",
        "A model that the training calls in training mode and does not train itself, as a teacher, is not wrapped: its "
        "BatchNorm layers take their statistics from one rank's samples, and every rank keeps others.",
        "teacher = rd.model.convert_sync_batchnorm(teacher): statistics of the samples of all ranks.",
        "teacher = nn.SyncBatchNorm.convert_sync_batchnorm(teacher), or teacher.eval() where that is meant.",
        (SYNC_BATCHNORM,),
    ),
    Rule(
        "RF215",
        "gradient-hooked-per-rank",
        "A hook on a parameter runs before DDP averages its gradient: what it clips, or keeps, is the gradient of one "
        "rank's samples, and the mean of clipped gradients is not the clipped mean.",
        "parameter.register_hook(lambda gradient: hook(rd.collectives.reduce_mean(gradient))), on every rank.",
        "Change the gradients between backward() and step(): torch.nn.utils.clip_grad_value_(model.parameters(), 1).",
        (DDP,),
    ),
    Rule(
        "RF216",
        "gradient-scaled-per-rank",
        "Each rank scales or clips its gradients by a norm of its own samples, or of its own shard: the step is not "
        "that of the clipped gradient of the whole batch.",
        "rd.strategies.clip_grad_norm(model, max_norm) on every rank, after the last backward.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm), after the gradients are averaged; with FSDP2 on "
        "the parameters themselves, not on to_local().",
        (DDP,),
        found_in=TRACED,
    ),
    # --- RF3: loss and learning rate ------------------------------------------------------------------------------
    Rule(
        "RF301",
        "loss-scaled-by-world-size",
        "DDP averages gradients, which is right for a mean over the batch: with the factor every step is N times too "
        "long, as if the learning rate were.",
        "Leave the factor out; only a loss that is summed over samples needs one: rd.loss.sum_loss(loss).",
        "Leave the factor out; only a loss that is summed over samples needs it.",
        (DDP,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF302",
        "loss-averaged-per-rank",
        "Each rank divides by its own number of valid elements, and DDP averages these means: an element weighs more "
        "on a rank that has few of them.",
        "criterion = rd.loss.distribute_criterion(nn.CrossEntropyLoss(...)), which divides by the number of all ranks.",
        "Divide the summed loss by the all-reduced number of valid elements, and multiply by world_size.",
        ("https://github.com/huggingface/transformers/issues/34373", "https://github.com/pytorch/torchtitan/pull/2206"),
    ),
    Rule(
        "RF303",
        "in-batch-loss-per-rank",
        "The loss compares the samples of one batch with each other, and each rank compares its own only: fewer "
        "negatives per sample, which is another loss.",
        "Gather what the loss compares, with gradients, and all that meets it there: "
        "rd.loss.batch_rows(embeddings), rd.loss.batch_rows(labels).",
        "Gather the embeddings of all ranks before the loss, with their gradients (torch.distributed.all_gather drops "
        "them): torch.cat(torch.distributed.nn.all_gather(embeddings)).",
    ),
    Rule(
        "RF304",
        "lr-scaled",
        "The learning rate is multiplied although an optimizer step is taken on the same number of samples.",
        "Leave the rate to rd.scaled_lr(lr), which gives factor 1 with --batch global.",
        "Leave the rate as it is: the batch size is divided by the number of processes.",
        (LARGE_BATCH,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF305",
        "schedule-length",
        "The schedule counts other steps than the optimizer makes (of N ranks each draws 1/N of the batches), so the "
        "learning rate falls too early or too late.",
        "Count the batches of the sharded loader, len(loader) * epochs, or samples // "
        "rd.data.samples_per_step(batch_size), and step once for each optimizer step.",
        "Count the batches of the sharded loader, len(loader) * epochs, and step once for each optimizer step.",
    ),
    Rule(
        "RF306",
        "lr-not-scaled",
        "N ranks with a batch each step on N times the samples, for which the old rate is too small.",
        "lr=rd.scaled_lr(lr); --lr_scale none leaves the rate, and --batch global keeps it too.",
        "Multiply the rate by world_size (linear scaling), with a warm-up.",
        (LARGE_BATCH,),
    ),
    Rule(
        "RF307",
        "summed-loss-averaged",
        "DDP averages gradients over N ranks; of a loss that is summed over samples that leaves 1/N of the step.",
        "rd.loss.sum_loss(loss).backward()",
        "(loss * world_size).backward()",
        (DDP,),
    ),
    Rule(
        "RF308",
        "mean-divided-by-batch",
        "Each rank divides the mean by the size of its own batch, one Nth of the global batch: the gradient is N times "
        "that of one process with the whole batch.",
        "Divide by what all ranks have: loss / rd.loss.batch_count(len(images)).",
        "Divide by what all ranks have: loss / (len(images) * world_size).",
    ),
    Rule(
        "RF309",
        "loss-couples-samples",
        "The loss is a function of sums over the whole batch (Dice, IoU, Tversky, the root of a mean): the average of "
        "what each rank computes of its own shard is another loss.",
        "Make each sum over the batch one over all ranks, with its gradient: rd.loss.batch_sum((output * "
        "target).sum()), or rd.loss.whole_batch_loss(criterion) for a criterion of a library.",
        "Sum over all ranks with gradients: torch.distributed.nn.functional.all_reduce((output * target).sum()).",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF310",
        "divided-by-batch-setting",
        "With a global batch of the old size a rank has its shard of the batch, but divides by all of it: the gradient "
        "is one Nth of that of one process.",
        "loss_sum / rd.loss.rank_share(rd.loss.global_batch(batch_size))",
        "Divide by the size of this rank's batch, len(images).",
    ),
    Rule(
        "RF311",
        "rate-search-per-rank",
        "A finder of learning rates calls backward itself and decides by the loss: by that of one rank's samples each "
        "rank finds another rate, and stops its test at another step, while the others wait for it.",
        "LRFinder(model, optimizer, rd.search.whole_batch_value(criterion)), and the model and loader of the training.",
        "Give the finder a criterion whose value is reduced: loss + (mean_over_ranks(loss) - loss).detach().",
        ("https://github.com/davidtvs/pytorch-lr-finder",),
    ),
    # --- RF4: evaluation and collective calls ---------------------------------------------------------------------
    Rule(
        "RF401",
        "metric-per-rank",
        "Each rank knows its own shard only: a figure of it (a loss, a mean, class weights) is not that of the whole "
        "batch or data set, where it is printed, decides, or is computed with.",
        "rd.reduce_loss(loss).item(), on every rank; for sums and counts total, count = "
        "rd.sum_over_ranks(total, count).",
        "dist.all_reduce sums and counts on every rank, then divide.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF402",
        "collective-on-some-ranks",
        "A collective call waits for every rank. Where some do not reach it, the others wait forever.",
        "Move it out of the branch: every rank calls it, one uses the result; to evaluate on one rank, call "
        "rd.unwrap_model(model).",
        "Move it out of the branch: every rank calls it, one uses the result; to evaluate on one rank, call "
        "model.module.",
        (DISTRIBUTED_PACKAGE, _ISSUES + "54059"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF405",
        "step-skipped-on-error",
        "The error, out of memory for instance, occurs on one rank. That rank leaves the step out, the others wait for "
        "it forever.",
        "First in the `except`: if rd.get_world_size() > 1: raise. The job ends with the error and can be resumed.",
        "First in the `except`: if dist.get_world_size() > 1: raise. The job ends with the error and can be resumed.",
    ),
    Rule(
        "RF406",
        "figure-of-one-rank",
        "What is computed from a rank's own samples is another figure than that of one process with all of them. It is "
        "listed where it could not be reduced, so that it is not taken for the whole.",
        "Read it as the figure of rank 0's shard, or reduce it: rd.reduce_loss, rd.reduce_total, rd.data.gather_batch.",
        "Read it as the figure of rank 0's shard, or all_reduce it on every rank.",
    ),
    Rule(
        "RF407",
        "figure-not-reduced",
        "Each rank computes its figures from its own samples: an accuracy that rank 0 prints is that of one Nth of the "
        "batch, and a count one Nth of the count.",
        "rd.reduce_loss(mean), rd.reduce_total(count) or rd.data.gather_batch(list), on every rank and once per batch.",
        "dist.all_reduce it, on every rank and once per batch.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF408",
        "decided-by-own-clock",
        "The clocks of the processes differ: one leaves the training, evaluates or reduces a figure a step before the "
        "others, which wait for it, or for which it waits.",
        "if rd.collectives.broadcast_object(time.time() - start > limit): rank 0's clock decides for all.",
        "Decide on rank 0 and hand it out: dist.broadcast_object_list([is_over]), on every rank.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF409",
        "chosen-by-own-draw",
        "Each rank draws its own number and chooses by it, for its part of the batch: the parts are trained on in "
        "different ways, and a rank waits for others that have chosen to do something else.",
        "rd.collectives.broadcast_object(random.random()), or rd.data.draw_together(random.choice, losses): every rank "
        "has rank 0's draw.",
        "Draw on rank 0 and hand it out: dist.broadcast_object_list([number]), on every rank.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF410",
        "evaluation-drawn-per-rank",
        "An evaluation that every rank runs draws random numbers, by dropout for instance, so each rank finds other "
        "figures: one lowers its learning rate, or ends its training, and the others do not.",
        "value = rd.data.draw_together(evaluate, model): every rank draws the random numbers of rank 0.",
        "Broadcast the figures of rank 0 before a decision.",
    ),
    # --- RF5: files and logs --------------------------------------------------------------------------------------
    Rule(
        "RF501",
        "save-on-every-rank",
        "N processes write one file at the same time: the last one wins, or the file is a mixture of several.",
        "Save under `if rd.is_main_process():`, open rd.path_on_main(path), or call rd.save_checkpoint(...) on every "
        "rank.",
        "Save under `if dist.get_rank() == 0:`.",
        (SAVING,),
    ),
    Rule(
        "RF502",
        "wrapper-prefix-saved",
        "All names in the checkpoint begin with 'module.': a script on one process, and every other tool, cannot load "
        "it.",
        "Save rd.unwrap_model(model).state_dict(), or use rd.save_checkpoint, which does.",
        "Save model.module.state_dict(), and load it with model.module.load_state_dict(...).",
        (SAVING, _ISSUES + "41048"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF503",
        "no-map-location",
        "Every rank loads the checkpoint onto the GPU it was saved from, GPU 0, which runs out of memory.",
        "torch.load(path, map_location=rd.devices.own_storage)",
        "torch.load(path, map_location='cpu')",
        (_DOCS + "generated/torch.load.html", _ISSUES + "23138"),
    ),
    Rule(
        "RF504",
        "setup-race",
        "Several processes create one folder or fill one cache at the same time: one fails, or reads what is half "
        "written.",
        "Create folders under `if rd.is_main_process():`, prepare data under `with rd.output.main_process_first():`.",
        "Let rank 0 prepare, the others wait in dist.barrier().",
        ("https://github.com/pytorch/tutorials/issues/3065",),
    ),
    Rule(
        "RF505",
        "log-on-every-rank",
        "Every process writes logs of its own, so curves and lines appear N times.",
        "rd.output.on_main_process(SummaryWriter, logdir), rd.print_main, tqdm(..., disable=not rd.is_main_process()).",
        "Create the writer, print and show progress under `if dist.get_rank() == 0:`.",
        ("https://github.com/wandb/wandb/issues/452",),
    ),
    Rule(
        "RF506",
        "log-step-axis",
        "Curves are drawn over another count of steps, so they cannot be compared with those of one process.",
        "Count optimizer steps (or samples of all ranks) for the axis, as one process does.",
        "Count optimizer steps (or samples of all ranks) for the axis, as one process does.",
        found_in=TRACED,
    ),
    Rule(
        "RF507",
        "state-not-restored",
        "Something of the training is not in the checkpoint or not restored, the order of the samples for instance, so "
        "a resumed training is another one.",
        "rd.set_epoch(loader, epoch) at the start of each epoch; rd.save_checkpoint and rd.load_checkpoint for model, "
        "optimizer, scheduler, epoch and random state.",
        "Save and restore model, optimizer, scheduler, epoch and random state; sampler.set_epoch(epoch) in each epoch.",
        (RANDOMNESS,),
    ),
    Rule(
        "RF508",
        "reread-before-written",
        "Rank 0 writes the file, the others read it without waiting: they find none, or half of one.",
        "rd.barrier() before it is read.",
        "dist.barrier() before it is read.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF509",
        "run-name-differs",
        "Processes that start in different seconds have run folders of different names, and do not find each other's "
        "files.",
        "rd.collectives.broadcast_object(time.strftime(...)): the name is that of rank 0.",
        "dist.broadcast_object_list([name]): the name is that of rank 0.",
    ),
    Rule(
        "RF510",
        "search-in-script",
        "Each process would ask for settings of its own, and the ranks of one training would train different models.",
        "rd.search.open_study(optuna.create_study, ...) and rd.search.run_trials(study.optimize, objective, ...): rank "
        "0 has the study, and all ranks train each trial. Other tools: start every run with the launcher, `wandb "
        "agent` with `torchrun train.py` as its command.",
        "Optuna has optuna_integration.TorchDistributedTrial for it. Other tools: start every run with the launcher, "
        "`wandb agent` with `torchrun train.py` as its command.",
    ),
    Rule(
        "RF512",
        "prompt-on-every-rank",
        "The processes read one keyboard: the answer goes to one of them, and the others wait or fail.",
        "rd.output.answer_of_main(input, text): rank 0 asks, and all follow the answer.",
        "Ask on rank 0, and dist.broadcast_object_list the answer.",
    ),
    # --- RF6: launch and devices ----------------------------------------------------------------------------------
    Rule(
        "RF601",
        "local-rank-flag",
        "Until torch 2.0 torch.distributed.launch passed --local_rank, since then --local-rank: a parser that "
        "knows one spelling refuses the other.",
        "rd.add_runtime_flags(parser), and no flag of your own for the local rank.",
        "parser.add_argument('--local_rank', '--local-rank', type=int), or read os.environ['LOCAL_RANK'].",
        (TORCHRUN, "https://github.com/huggingface/pytorch-image-models/issues/1724"),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF602",
        "port-hard-coded",
        "The launcher's port is overridden: two trainings on one machine collide, or the second cannot start.",
        "rd.setup_distributed(), which takes the launcher's address.",
        "Leave MASTER_ADDR and MASTER_PORT to the launcher (init_method='env://'), or use os.environ.setdefault.",
        (TORCHRUN,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF603",
        "object-on-some-ranks",
        "An object exists on rank 0 only, and another rank uses it.",
        "Guard the use too (if rd.is_main_process():), or create it with rd.output.on_main_process(factory), which "
        "takes every call on the other ranks.",
        "Guard the use too: if dist.get_rank() == 0:.",
        found_in=TRACED,
    ),
    Rule(
        "RF604",
        "device-shared",
        "Every process computes on the GPU with that number; the others are idle.",
        "rd.devices.own_device(device), or 'cuda' without a number: the process's own GPU is the current one.",
        "torch.device('cuda', int(os.environ['LOCAL_RANK'])).",
        (DDP,),
    ),
    Rule(
        "RF605",
        "process-group-missing",
        "Without a process group every process is a training of its own, and all of them overwrite each other's files.",
        "rd.add_runtime_flags(parser), rd.setup_distributed(args) right after the parsing, rd.cleanup_distributed() at "
        "the end.",
        "dist.init_process_group() right after the parsing, dist.destroy_process_group() at the end.",
        (DISTRIBUTED_PACKAGE,),
    ),
    Rule(
        "RF606",
        "visible-gpus-set",
        "A script for one GPU that hides the others from itself hides them from every process: all but one find no "
        "GPU.",
        "rd.devices.visible_gpus(value), which leaves the choice to the launcher where one GPU is not enough.",
        "Set CUDA_VISIBLE_DEVICES where the training is started, not in the script.",
    ),
    Rule(
        "RF607",
        "device-not-chosen",
        "'cuda' means GPU 0 until a process chooses another: all processes compute there, and NCCL refuses to.",
        "rd.setup_distributed(), which chooses the GPU by the local rank.",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before the first .cuda().",
        (DISTRIBUTED_PACKAGE,),
        found_in=DISTRIBUTED,
    ),
    Rule(
        "RF608",
        "gpu-count-of-machine",
        "What one process does for N GPUs, N processes then do N times: the batch, the rate or the workers grow twice.",
        "rd.devices.own_gpu_count(number): started by a launcher, each process counts for one GPU.",
        "Count one GPU per process.",
    ),
)

CATALOG = {rule.code: rule for rule in _ALL}

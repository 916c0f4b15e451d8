"""Trainings in which nothing is wrong, however unusual: no check may fail, and which have nothing to judge is known."""

from __future__ import annotations

import pytest
from verify_evidence import (
    VAL,
    WORLD,
    at_the_time_of,
    change,
    collective_call,
    copy_of,
    evaluation_events,
    events_of,
    insert,
    iteration_start,
    order_of_epoch,
    redraw,
    remove,
    sound_runs,
    spoil,
)

from retrofit.verify.checks import CHECKS, run_checks
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    CollectiveCall,
    EpochOrder,
    FileChange,
    FileLoad,
    FileSave,
    InitialWeights,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    MetricRows,
    OptimizerFound,
    OptimizerStep,
    OutputLine,
    ParserOption,
    ParserUse,
    ProcessExit,
    StateBeforeStep,
)


def counts_of_whole_epochs(runs):
    """The trace has cut the epochs, and the script counts len(loader) steps for each that is over."""
    for name in ("many", "reference"):
        change(runs[name], IterationEnd, having={"is_training": True}, is_capped=True)
        for event, total in zip(events_of(runs[name], FileSave), (2, 4)):
            spoil(event, values={"total": total})
    change(runs["resumed"], FileSave, values={"total": 8})
    change(runs["resumed"], LoggedScalar, axis=8)


def told_by_the_clock(runs):
    """Times, folders and options are those of a run, and so is a scheduler that is made in each phase."""
    for name, values in (("many", (1.5, "a", 0)), ("reference", (2.5, "b", 0)), ("resumed", (0.5, "c", 1))):
        told = dict(zip(("clock", "folder", "args/first_epoch"), values), elapsed_time=3)
        change(runs[name], FileSave, values=told)
    option = ParserOption(["--first_epoch"], "first_epoch", True, "", None)
    change(runs["many"], ParserUse, options=[option])
    for number in range(2):
        insert(runs["many"], [0, 1], OptimizerStep, StateBeforeStep(f"StepLR {number}", {"last_epoch": number}))
    insert(runs["resumed"], [0, 1], OptimizerStep, StateBeforeStep("StepLR 0", {"last_epoch": 1}))


def padded_training(runs):
    """15 samples: DistributedSampler repeats one so that both ranks have 8."""
    for name, first in (("one", 0), ("original", 0), ("many", 0), ("reference", 0), ("resumed", 1)):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=15)
        redraw(runs[name], lambda rank, epoch, run=runs[name], first=first: padded(run, rank, epoch + first))


def padded(run, rank, epoch):
    order = [sample for sample in order_of_epoch(epoch) if sample != 15]
    return [*order, order[0]][rank::WORLD] if run.world_size > 1 else order


def tail_dropped(runs):
    """18 samples: with drop_last every run leaves out two of them, not the same ones."""
    for name in ("one", "original", "many", "reference", "resumed"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=18, drop_last=True)
    for name, first in (("many", 0), ("resumed", 1)):
        redraw(runs[name], lambda rank, epoch, first=first: [x + 2 for x in order_of_epoch(epoch + first)][rank::WORLD])


def sharded_stream(runs):
    for run in runs.values():
        first = 1 if run.name == "resumed" else 0
        redraw(run, lambda rank, epoch, run=run, first=first: contents(run, rank, epoch + first))
        for event in events_of(run, IterationStart, grad_enabled=True):
            spoil(event, is_map=False, length=None, samplers=[], dataset="Stream:-:0", probe=None)
        for number in {event.iteration for event in events_of(run, IterationStart, is_map=False)}:
            remove(run, EpochOrder, iteration=number)
        if events_of(run, IterationEnd, is_training=True):
            change(run, IterationEnd, having={"is_training": True}, draws=[], probe=None)


def contents(run, rank, epoch):
    return [f"content {epoch} {i}" for i in range(16)[rank :: run.world_size]]


def weights_kept(runs):
    """A weighted sampler inside the sharding one: samples are repeated on both sides, and not the same ones."""
    for name, run in runs.items():
        first = 1 if name in ("resumed", "reload", "reload_original") else 0
        redraw(run, lambda rank, epoch, run=run, first=first: weighted(run, rank, epoch + first))
        sampler = ["BatchSampler", "ShardedSampler", "WeightedRandomSampler"]
        change(
            run, IterationStart, having={"grad_enabled": True}, samplers=sampler if run.world_size > 1 else sampler[::2]
        )


def weighted(run, rank, epoch):
    flavour = "of ranks" if run.world_size > 1 else "single"
    return [x // 2 for x in order_of_epoch(epoch, flavour)][rank :: run.world_size]


def fixed_order(runs):
    for run in runs.values():
        redraw(run, lambda rank, epoch, run=run: list(range(16))[rank :: run.world_size])
        change(run, IterationStart, having={"grad_enabled": True}, samplers=["BatchSampler", "SequentialSampler"])


def orders_equal_by_chance(runs):
    """Eight samples: rank 0 draws its four in the same order twice, rank 1 does not."""
    shares = {0: [[0, 1, 2, 3], [0, 1, 2, 3]], 1: [[4, 5, 6, 7], [7, 5, 4, 6]]}
    for name, run in runs.items():
        first = 1 if name in ("resumed", "reload", "reload_original") else 0
        change(run, IterationStart, having={"grad_enabled": True}, length=8)
        single = [[5, 1, 7, 3, 2, 0, 6, 4], [1, 0, 4, 5, 2, 7, 3, 6]]
        orders = shares if run.world_size > 1 else {0: single}
        redraw(run, lambda rank, epoch, o=orders, first=first: o[rank][epoch + first], size=4 // run.world_size)


def logs_named_by_rank(runs):
    insert(runs["many"], [0], ProcessExit, FileChange(op="write", path="logs/rank0.log"))
    insert(runs["many"], [1], ProcessExit, FileChange(op="write", path="logs/rank1.log"))
    insert(runs["many"], [1], ProcessExit, FileSave(path="logs/rng_state_r1.pt", keys={}))


def temporary_files(runs):
    for path in ("/tmp/tmpab12cd34/kernel.so", "pkg/__pycache__/net.cpython-311.pyc", "/dev/null"):
        insert(runs["many"], (0, 1), ProcessExit, FileChange(op="write", path=path))


def no_batchnorm(runs):
    for run in runs.values():
        if events_of(run, OptimizerStep):
            change(run, OptimizerStep, buffers={})


def every_rank_evaluates(runs):
    for event in events_of(runs["many"], IterationStart, dataset=VAL):
        having = {"iteration": event.iteration}
        change(runs["many"], BatchDrawn, having=having, samples=list(range(6)))
        change(runs["many"], EpochOrder, having=having, batches=[list(range(6))])


def rank_0_evaluates(runs):
    every_rank_evaluates(runs)
    for event in events_of(runs["many"], IterationStart, [1], dataset=VAL):
        for kind in (BatchDrawn, EpochOrder, IterationStart, IterationEnd):
            remove(runs["many"], kind, [1], iteration=event.iteration)


def evaluation_inside_training(runs):
    """An evaluation in the middle of an epoch: its samples are not those of a step."""
    for name in ("one", "original", "many", "reference"):
        for rank in runs[name].ranks:
            place = next(i for i, event in enumerate(rank.events) if isinstance(event, OptimizerStep)) + 1
            share = list(range(6))[rank.rank :: runs[name].world_size]
            start = iteration_start(9, "Pictures:6:1", 6, grad_enabled=False)
            rank.events[place:place] = [spoil(event, step=1) for event in (start, *evaluation_events(9, share))]


def parts_by_subset(runs):
    """The script gives each rank a Subset of its own instead of a sampler."""
    for name in ("many", "resumed"):
        for rank, members in ((0, list(range(8))), (1, list(range(8, 16)))):
            change(runs[name], IterationStart, [rank], {"grad_enabled": True}, members=members, length=8)
        redraw(runs[name], lambda rank, epoch: [x for x in order_of_epoch(epoch) if x // 8 == rank])
    redraw(runs["resumed"], lambda rank, epoch: [x for x in order_of_epoch(1) if x // 8 == rank])
    change(runs["many"], IterationStart, [1], {"epoch": 0, "grad_enabled": True}, probe={"0": "content 8"})
    change(runs["many"], IterationEnd, [1], {"is_training": True}, probe={"0": "content 8"})


def parts_as_lists(runs):
    """Each rank reads a list of its own: numbers 0 to 7 on both, other samples."""
    for name in ("many", "resumed"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, dataset="list:8:0", length=8)
        redraw(runs[name], lambda rank, epoch: [x for x in order_of_epoch(epoch) if x < 8])
    redraw(runs["resumed"], lambda rank, epoch: [x for x in order_of_epoch(1) if x < 8])
    for name in ("one", "original", "reference"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, dataset="list:16:0")
    change(runs["many"], IterationStart, [1], {"epoch": 0, "grad_enabled": True}, probe={"0": "content 8"})
    change(runs["many"], IterationEnd, [1], {"is_training": True}, probe={"0": "content 8"})


def split_after_weights(runs):
    """Weights in double precision take other random numbers, so the split that follows is another one there."""
    for name, members in (("one", [0, 1, 2, 3, 4, 5]), ("many", range(10, 16)), ("reference", range(10, 16))):
        for event in events_of(runs[name], IterationStart, grad_enabled=False):
            spoil(event, members=list(members) if event.repeat == 0 else None)
        for rank in runs[name].ranks:
            for event in events_of(runs[name], IterationStart, [rank.rank], grad_enabled=False):
                share = list(members)[rank.rank :: runs[name].world_size]
                change(runs[name], BatchDrawn, [rank.rank], {"iteration": event.iteration}, samples=share)
                change(runs[name], EpochOrder, [rank.rank], {"iteration": event.iteration}, batches=[share])
    del runs["original"]


def loss_divided_and_gradients_added_up(runs):
    for name in ("many", "resumed"):
        change(runs[name], OptimizerStep, losses=lambda event: [loss / 2 for loss in event.losses])


def backward_for_nothing_before_resuming(runs):
    for rank in (0, 1):
        change(runs["resumed"], OptimizerStep, [rank], {"number": 0}, losses=lambda event: [7.0, *event.losses])


def times_and_training_loss_in_lines(runs):
    for name, seconds in (("many", "3.21"), ("reference", "5.43")):
        insert(runs[name], [0], LoggedScalar, OutputLine(text=f"epoch 0 took {seconds} s, lr 0.100", stream="stdout"))
        insert(runs[name], [0], LoggedScalar, OutputLine(text="train_loss 1.5000 accuracy 0.5000", stream="stdout"))
        insert(runs[name], [0], LoggedScalar, OutputLine(text=f"accuracy 0.5000 (time {seconds})", stream="stdout"))
        insert(runs[name], [0], LoggedScalar, LoggedScalar(name="train/loss", value=1.5, axis=2))


def two_optimizers(runs):
    """A GAN: each batch is a step of the discriminator and one of the generator, which takes no samples of its own."""
    for run in runs.values():
        for trace in run.ranks:
            trace.events = [copy for event in trace.events for copy in with_generator(event, run)]


def with_generator(event, run):
    if isinstance(event, (OptimizerFound, InitialWeights)):
        return [event, copy_of(event, optimizer=1)]
    if not isinstance(event, OptimizerStep):
        return [copy_of(event, step=2 * event.step)]
    first = copy_of(event, number=2 * event.number, step=2 * event.step)
    second = copy_of(first, number=first.number + 1, step=first.step + 1, optimizer=1, rows=0, lr=[0.01])
    between = [at_the_time_of(second, BackwardCall(event.losses[0]))]
    if run.world_size > 1:  # the generator's backward goes through the discriminator as well
        between.append(at_the_time_of(second, collective_call("allreduce_", 24)))
    return [first, *between, second]


def unused_parameter(runs):
    """A parameter without gradient on all sides."""
    for run in runs.values():
        if events_of(run, OptimizerStep):
            change(run, OptimizerStep, gradients=lambda event: [event.gradients[0], None])
    for name in ("many", "resumed"):
        change(runs[name], CollectiveCall, having={"in_backward": True}, numel=9)


def rounding(runs):
    for rank in (0, 1):
        for key in ("gradients", "parameters"):
            values = {key: lambda event, key=key: [[a * (1 + 1e-15), b] for a, b in getattr(event, key)]}
            change(runs["many"], OptimizerStep, [rank], **values)
    change(runs["many"], LoggedScalar, value=lambda event: event.value * (1 + 1e-15))


def zero_gradient_of_rounding(runs):
    """A bias before BatchNorm has no gradient but rounding, which is as large as itself."""
    for name, size in (("many", 1e-18), ("reference", 3e-17)):
        change(runs[name], OptimizerStep, gradients=lambda event, size=size: [event.gradients[0], [size, size]])


def later_evaluation_not_reached(runs):
    """Epochs of another length: the processes have made all their steps before the last evaluation of one."""
    number = events_of(runs["many"], IterationStart, [0], dataset=VAL, repeat=1)[0].iteration
    for kind in (BatchDrawn, EpochOrder, IterationStart, IterationEnd):
        remove(runs["many"], kind, iteration=number)


def two_backwards_on_a_batch(runs):
    """The real and the generated half of a discriminator's loss: no batches that could wait for each other."""
    for run in runs.values():
        if run.name.startswith("reload"):
            continue
        for rank in range(run.world_size):
            events = run.ranks[rank].events
            for event in [event for event in events if isinstance(event, BackwardCall)]:
                place = next(i for i, other in enumerate(events) if other is event)
                further = [event, at_the_time_of(event, collective_call("allreduce_", 12))]
                events[place:place] = further if run.world_size > 1 else further[:1]


def batches_left_over(runs):
    """Rank 0 has a batch more, and every rank leaves its loop after the second."""
    extra = [[90, 91, 92, 93]]
    change(runs["many"], EpochOrder, [0], batches=lambda event: event.batches + extra * (event.iteration in (0, 2)))
    change(runs["many"], IterationEnd, having={"is_training": True}, is_exhausted=False)
    for name in ("one", "original", "many", "reference"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=20)
    for name in ("one", "original"):
        change(runs[name], EpochOrder, batches=lambda event: event.batches + extra * (event.iteration in (0, 2)))


def data_loaded_as_it_was_saved(runs):
    """A prepared data set in a file of torch.save: it was never on a GPU."""
    insert(runs["many"], [0], IterationStart, FileSave(path="data/cache.pt", keys={"0": "uint8[3]"}))
    insert(runs["many"], (0, 1), IterationStart, FileLoad(path="data/cache.pt", has_map_location=False, is_own=True))


def message_passing(runs):
    """Messages between two ranks are no calls of all ranks."""
    insert(runs["many"], [0], ProcessExit, collective_call("send", 5, "float32", in_backward=False))
    insert(runs["many"], [1], ProcessExit, collective_call("recv_", 5, "float32", in_backward=False))


def padding_in_no_figure(runs):
    """Both ranks have as many samples, and what was repeated for that is in no figure."""
    for event in events_of(runs["many"], IterationStart, [1], dataset=VAL):
        change(runs["many"], BatchDrawn, [1], {"iteration": event.iteration}, samples=[1, 3, 5, 0])


def padding_left_out_by_a_library(runs):
    """The figures are 1 with and without the padding, but a library says what it left out."""
    padding_in_no_figure(runs)
    for name in ("many", "reference", "resumed"):
        change(runs[name], LoggedScalar, [0], value=1.0)
        change(runs[name], OutputLine, [0], text="epoch accuracy 1.000")
    for event in events_of(runs["many"], OutputLine, [0]):
        runs["many"].ranks[0].events.append(copy_of(MetricRows(6), step=event.step))


def random_state_of_each_rank(runs):
    """A checkpoint of the library has a part for each rank."""
    for rank in (0, 1):
        insert(runs["many"], [rank], ProcessExit, FileSave(path=f"runs/random_states_{rank}.pkl", keys={"step": "int"}))


def drawn_ahead(runs):
    """A thread of the script has drawn the next batch when the resumed run makes its first step."""
    for rank in runs["resumed"].ranks:
        places = [place for place, event in enumerate(rank.events) if isinstance(event, BatchDrawn)]
        rank.events.insert(places[0] + 1, rank.events.pop(places[1]))


def drawn_and_left_out(runs):
    """The first epoch is left by a break, with a batch in hand: the next step is not made from it."""
    for rank, name in ((0, "many"), (1, "many"), (0, "reference")):
        events = runs[name].ranks[rank].events
        place = next(i for i, event in enumerate(events) if isinstance(event, IterationEnd) and event.is_training)
        events[place] = copy_of(events[place], is_exhausted=False)
        events.insert(place, copy_of(BatchDrawn(0, 2, [15]), seconds=events[place].seconds, step=events[place].step))


def library_loads_its_checkpoint(runs):
    change(runs["resumed"], FileLoad, has_map_location=False, by_script=False)


OF_SAMPLES = ("shards", "reshuffle")
OF_STEPS = ("loss", "gradients", "parameters")

NO_FAULTS = [
    (drawn_ahead, {}),
    (drawn_and_left_out, {}),
    (padded_training, {}),
    (counts_of_whole_epochs, {"resume": "NOT APPLICABLE"}),
    (told_by_the_clock, {}),
    (tail_dropped, {}),
    (sharded_stream, dict.fromkeys(("split", "reshuffle", "random_streams"), "NOT APPLICABLE")),
    (weights_kept, {}),
    (fixed_order, {}),
    (orders_equal_by_chance, {}),
    (logs_named_by_rank, {}),
    (temporary_files, {}),
    (no_batchnorm, {"batchnorm": "NOT APPLICABLE"}),
    (every_rank_evaluates, {}),
    (rank_0_evaluates, {}),
    (evaluation_inside_training, {}),
    (parts_by_subset, {}),
    (parts_as_lists, dict.fromkeys((*OF_SAMPLES, *OF_STEPS), "NOT APPLICABLE")),
    (split_after_weights, {"original": "NOT APPLICABLE"}),
    (loss_divided_and_gradients_added_up, {}),
    (backward_for_nothing_before_resuming, {}),
    (times_and_training_loss_in_lines, {}),
    (two_optimizers, {}),
    (unused_parameter, {}),
    (rounding, {}),
    (zero_gradient_of_rounding, {}),
    (later_evaluation_not_reached, {}),
    (two_backwards_on_a_batch, {}),
    (batches_left_over, {}),
    (data_loaded_as_it_was_saved, {}),
    (message_passing, {}),
    (padding_in_no_figure, {}),
    (padding_left_out_by_a_library, {}),
    (random_state_of_each_rank, {}),
    (library_loads_its_checkpoint, {"devices": "NOT APPLICABLE"}),
]


@pytest.mark.parametrize(("vary", "expected"), NO_FAULTS, ids=[vary.__name__ for vary, _ in NO_FAULTS])
def test_a_sound_training_fails_no_check(vary, expected):
    runs = sound_runs()
    vary(runs)
    assert {verdict.check: verdict.status for verdict in run_checks(runs)} == {
        **dict.fromkeys(CHECKS, "PASS"),
        **expected,
    }


NOTES = [
    (padded_training, "shards", "1 sample repeated per epoch, so that ranks are even"),
    (weights_kept, "shards", "drawn with replacement"),
    (sharded_stream, "shards", "told apart by content"),
    (every_rank_evaluates, "evaluation", "every rank evaluates everything"),
    (rank_0_evaluates, "evaluation", "rank 0 evaluates alone"),
    (two_backwards_on_a_batch, "communication", "2 backward calls on one batch all-reduce 2 times"),
    (loss_divided_and_gradients_added_up, "loss", "carry a constant factor"),
    (logs_named_by_rank, "single_writer", "rank 1 writes logs/rank1.log"),
]


@pytest.mark.parametrize(("vary", "check", "note"), NOTES, ids=[vary.__name__ for vary, *_ in NOTES])
def test_a_note_says_what_is_unusual(vary, check, note):
    runs = sound_runs()
    vary(runs)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == check)
    assert verdict.note is not None and note in verdict.note

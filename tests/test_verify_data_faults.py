"""Faults in the data of a training: each must fail its own check with its own cause, and no other check."""

from __future__ import annotations

import pytest
from verify_evidence import (
    BATCH,
    TRAIN,
    WORLD,
    at_the_time_of,
    change,
    events_of,
    failures,
    insert,
    order_of_epoch,
    redraw,
    remove,
    sound_runs,
    spoil,
)

from retrofit.rules.catalog import CATALOG
from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    EpochOrder,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    OptimizerStep,
    OutputLine,
    RowDraw,
    SampleContents,
    WorkerStreams,
)


def set_epoch_missing(runs):
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(0)[rank::WORLD])
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0)[rank::WORLD])


def set_epoch_missing_on_rank_1(runs):
    """Only rank 0 calls it: from the second epoch on the shares overlap as well."""
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(0 if rank else epoch)[rank::WORLD])
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(0 if rank else 1)[rank::WORLD])


def weighted_sampler_dropped(runs):
    for name in ("one", "original"):
        redraw(runs[name], lambda rank, epoch: [x // 2 for x in order_of_epoch(epoch)])
        change(
            runs[name],
            IterationStart,
            having={"grad_enabled": True},
            samplers=["BatchSampler", "WeightedRandomSampler"],
        )
    change(runs["many"], IterationStart, having={"grad_enabled": True}, samplers=["BatchSampler", "DistributedSampler"])


def replacement_dropped(runs):
    """RandomSampler(replacement=True) has no name of its own: the repeated samples tell."""
    for name in ("one", "original"):
        redraw(runs[name], lambda rank, epoch: [x // 2 for x in order_of_epoch(epoch)])
        change(runs[name], IterationStart, having={"grad_enabled": True}, samplers=["BatchSampler", "RandomSampler"])


def sequential_shuffled(runs):
    for name in ("one", "original"):
        redraw(runs[name], lambda rank, epoch: list(range(16)))
        change(
            runs[name], IterationStart, having={"grad_enabled": True}, samplers=["BatchSampler", "SequentialSampler"]
        )


def subset_sampler_dropped(runs):
    """One process trains on the even samples only, in batches of 8; the ranks on all."""
    for name in ("one", "original"):
        redraw(runs[name], lambda rank, epoch: [2 * x for x in order_of_epoch(epoch)])
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=32, dataset="Pictures:32:0")
    for name in ("reference", "many", "resumed"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=32, dataset="Pictures:32:0")


def not_sharded(runs):
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(epoch))
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(1))


def not_sharded_and_scheduled_by_length(runs):
    """The schedule counts the batches of the whole set: it follows from the sharding."""
    not_sharded(runs)
    for name in ("many", "resumed"):
        change(
            runs[name], OptimizerStep, lr=lambda event: [event.lr[0] * (1 + 0.1 * event.number if event.number else 1)]
        )
    del runs["resumed"]


def not_sharded_with_own_order(runs):
    """The ranks shuffle the whole data set differently."""
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(epoch, f"rank {rank}"))
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(1, f"rank {rank}"))


def ranks_shuffle_alone(runs):
    """Each rank takes its part of an order of its own: some samples are drawn twice, others never."""
    redraw(runs["many"], lambda rank, epoch: order_of_epoch(epoch, f"rank {rank}")[rank::WORLD])
    redraw(runs["resumed"], lambda rank, epoch: order_of_epoch(1, f"rank {rank}")[rank::WORLD])


def part_never_drawn(runs):
    """Every rank leaves out its last batch in epoch 1."""
    for name, first in (("many", 0), ("resumed", 1)):
        redraw(runs[name], lambda rank, epoch, first=first: shorter(rank, epoch + first))
        change(runs[name], IterationStart, having={"grad_enabled": True}, drop_last=False)


def shorter(rank, epoch):
    order = order_of_epoch(epoch)[rank::WORLD]
    return order if epoch == 0 else order[:4] + order[4:7]


def as_stream(run, share_of_epoch, size=None):
    """Turn the training set into a stream: samples are known by content, and there is no order."""
    first = 1 if run.name == "resumed" else 0
    redraw(run, lambda rank, epoch: [f"content {i}" for i in share_of_epoch(rank, epoch + first)], size)
    for event in events_of(run, IterationStart, grad_enabled=True):
        spoil(event, is_map=False, length=None, samplers=[], dataset="Stream:-:0", probe=None)
    for number in {event.iteration for event in events_of(run, IterationStart, grad_enabled=True)}:
        remove(run, EpochOrder, iteration=number)


def stream_not_sharded(runs):
    for run in runs.values():
        as_stream(run, lambda rank, epoch: range(16 * epoch, 16 * epoch + 16))


def stream_not_sharded_and_augmented(runs):
    """Random changes hide that the contents are the same; each rank has as many samples as one process."""
    for run in runs.values():
        as_stream(run, lambda rank, epoch: range(16 * epoch + 100 * rank, 16 * epoch + 100 * rank + 16), BATCH)


def stream_with_a_common_part(runs, repeats=1):
    """Each rank has 40 samples; 12 of them are those of both. `repeats`: so often they are in the stream."""
    for run in runs.values():
        world = len(run.ranks)
        both = [i % (12 // repeats) for i in range(12)]
        as_stream(
            run,
            lambda rank, epoch, world=world, both=both: (
                [*both, *range(100 + 28 * rank, 128 + 28 * rank)] * (2 // world)
            ),
            40 // world,
        )


@pytest.mark.parametrize(("repeats", "status"), [(1, "FAIL"), (4, "PASS")])
def test_a_stream_whose_parts_overlap_is_not_split(repeats, status):
    runs = sound_runs()
    stream_with_a_common_part(runs, repeats)
    (verdict,) = [verdict for verdict in run_checks(runs) if verdict.check == "shards"]
    assert (verdict.status, verdict.cause) == (status, "RF104" if status == "FAIL" else None)


def batch_size_per_process(runs):
    """Each process takes 8 samples: two steps, 16 samples each, as one epoch of 32 samples has."""
    for name, first in (("many", 0), ("resumed", 1)):
        run = runs[name]
        change(run, IterationStart, having={"grad_enabled": True}, length=32, batch_size=BATCH, dataset="Pictures:32:0")
        redraw(run, lambda rank, epoch, first=first: wide_order(epoch + first)[rank::WORLD], size=BATCH)
    for name in ("one", "original", "reference"):
        run = runs[name]
        change(run, IterationStart, having={"grad_enabled": True}, length=32, dataset="Pictures:32:0")
        change(run, EpochOrder, having={"iteration": 0}, batches=[wide_order(0)[i : i + 8] for i in range(0, 32, 8)])
        change(run, EpochOrder, having={"iteration": 2}, batches=[wide_order(1)[i : i + 8] for i in range(0, 32, 8)])
        change(run, IterationEnd, having={"is_training": True}, is_exhausted=False, is_capped=True)


def wide_order(epoch):
    return [*order_of_epoch(epoch), *(16 + x for x in order_of_epoch(epoch))]


def batch_size_rounded_down(runs):
    """Global batch 6 instead of 8: no factor of the number of processes."""
    for name in ("many", "resumed"):
        change(runs[name], BatchDrawn, samples=lambda event: event.samples[:3])


def split_differs_by_content(runs):
    change(
        runs["many"], IterationStart, [1], {"epoch": 0, "grad_enabled": True}, probe={"0": "other", "8": "x", "15": "y"}
    )
    change(runs["many"], IterationEnd, [1], {"is_training": True}, probe={"0": "other", "8": "x", "15": "y"})


def split_differs_by_members(runs):
    for rank, members in ((0, [0, 1, 2, 3, 4, 5]), (1, [4, 5, 6, 7, 8, 9])):
        change(runs["many"], IterationStart, [rank], {"grad_enabled": False}, members=members)


def split_differs_by_length(runs):
    change(runs["many"], IterationStart, [1], {"dataset": TRAIN}, dataset="Pictures:15:0", length=15)


def contents(run, ranks, of_sample):
    """Add the content of the samples of each batch."""
    for rank in ranks:
        events = run.ranks[rank].events
        for event in events_of(run, BatchDrawn, [rank]):
            found = SampleContents(event.iteration, {str(i): of_sample(i) for i in event.samples}, "train.py:9")
            events.insert(events.index(event) + 1, at_the_time_of(event, found))


def another_content_on_rank_1(runs):
    """Class 3 has another number there: the few samples that are probed do not show it."""
    for name in ("many", "reference"):
        contents(runs[name], [0], str)
    contents(runs["many"], [1], lambda i: f"{i}{' of another class' if i % 4 == 3 else ''}")


def workers_seeded_the_same(runs):
    """A worker_init_fn seeds what samples draw from, and the rest follows torch's stream."""
    for rank in (0, 1):
        change(runs["many"], IterationStart, [rank], num_workers=2)
        states = [{"python": f"{rank}{worker}", "numpy": f"n{worker}"} for worker in (0, 1)]
        insert(runs["many"], [rank], EpochOrder, WorkerStreams(0, states))


def noise_the_same(runs):
    for rank in (0, 1):
        insert(runs["many"], [rank], BackwardCall, row_draw(rank, "state"))


def row_draw(rank, state, **values):
    usual = {"op": "randn", "stream": "torch", "samples": f"of rank {rank}", "in_model": False, "where": "train.py:7"}
    return RowDraw(state=state, **{**usual, **values})


def same_streams(runs):
    change(
        runs["many"], IterationStart, streams=lambda event: {"python": "p", "numpy": "n", "torch": "t", "loader": None}
    )


def same_stream_for_workers(runs):
    """Workers are seeded from the torch stream, whatever their items draw from."""
    for rank in (0, 1):
        streams = {"python": f"p{rank}", "numpy": f"n{rank}", "torch": "t", "loader": None}
        change(runs["many"], IterationStart, [rank], num_workers=4, streams=streams)


def same_generator_for_workers(runs):
    for rank in (0, 1):
        streams = {"python": f"p{rank}", "numpy": f"n{rank}", "torch": f"t{rank}", "loader": "g"}
        change(runs["many"], IterationStart, [rank], num_workers=4, streams=streams)


def changed_in_place(runs):
    probe = {"0": "content 0", "8": "changed", "15": "content 15"}
    change(runs["many"], IterationEnd, None, {"is_training": True}, probe=probe)


def padded_evaluation(runs):
    """Five validation samples on two ranks: DistributedSampler repeats the first."""
    for name in ("one", "original", "reference", "many"):
        change(runs[name], IterationStart, having={"grad_enabled": False}, dataset="Pictures:5:0", length=5)
    for name in ("one", "original", "reference"):
        set_evaluated(runs[name], 0, [0, 1, 2, 3, 4])
    set_evaluated(runs["many"], 0, [0, 2, 4])
    set_evaluated(runs["many"], 1, [1, 3, 0])
    give_out_no_figures(runs["many"])


def padded_evaluation_of_counted_batches(runs):
    """The script takes as many batches as the loader has, and asks for no further one: such a pass has no end."""
    padded_evaluation(runs)
    leave_evaluations_at_last_batch(runs)


def leave_evaluations_at_last_batch(runs):
    for run in (run for run in runs.values() if events_of(run, IterationEnd, is_training=False)):
        remove(run, IterationEnd, None, is_training=False)


def give_out_no_figures(run):
    """No figure shows that what is repeated is not counted."""
    for kind in (OutputLine, LoggedScalar):
        remove(run, kind)


def evaluation_drops(runs):
    set_evaluated(runs["many"], 1, [1, 3])


def evaluation_overlaps(runs):
    set_evaluated(runs["many"], 1, [1, 3, 5, 0, 2])
    give_out_no_figures(runs["many"])


def evaluation_lost(runs):
    numbers = {event.iteration for event in events_of(runs["many"], IterationStart, grad_enabled=False)}
    for number in numbers:
        for kind in (BatchDrawn, EpochOrder, IterationStart, IterationEnd):
            remove(runs["many"], kind, iteration=number)


def set_evaluated(run, rank, samples):
    numbers = {event.iteration for event in events_of(run, IterationStart, [rank], grad_enabled=False)}
    for number in numbers:
        change(run, BatchDrawn, [rank], {"iteration": number}, samples=samples)
        change(run, EpochOrder, [rank], {"iteration": number}, batches=[samples])


FAULTS = [
    (set_epoch_missing, {"reshuffle": "RF101"}),
    (set_epoch_missing_on_rank_1, {"reshuffle": "RF101", "shards": "RF103"}),
    (weighted_sampler_dropped, {"shards": "RF102"}),
    (replacement_dropped, {"shards": "RF102"}),
    (sequential_shuffled, {"reshuffle": "RF102"}),
    (subset_sampler_dropped, {"shards": "RF102"}),
    (not_sharded, {"shards": "RF103"}),
    (not_sharded_and_scheduled_by_length, {"shards": "RF103"}),
    (not_sharded_with_own_order, {"shards": "RF103"}),
    (ranks_shuffle_alone, {"shards": "RF103"}),
    (part_never_drawn, {"shards": "RF103"}),
    (stream_not_sharded, {"shards": "RF104"}),
    (stream_not_sharded_and_augmented, {"shards": "RF104"}),
    (batch_size_per_process, {"global_batch": "RF107"}),
    (batch_size_rounded_down, {"global_batch": None}),
    (split_differs_by_content, {"split": "RF108"}),
    (split_differs_by_members, {"split": "RF108"}),
    (split_differs_by_length, {"split": "RF108"}),
    (another_content_on_rank_1, {"split": "RF108"}),
    (same_streams, {"random_streams": "RF109"}),
    (workers_seeded_the_same, {"random_streams": "RF109"}),
    (noise_the_same, {"random_streams": "RF109"}),
    (same_stream_for_workers, {"random_streams": "RF109"}),
    (same_generator_for_workers, {"random_streams": "RF109"}),
    (changed_in_place, {"split": "RF110"}),
    (padded_evaluation, {"evaluation": "RF105"}),
    (padded_evaluation_of_counted_batches, {"evaluation": "RF105"}),
    (evaluation_drops, {"evaluation": "RF111"}),
    (evaluation_overlaps, {"evaluation": "RF111"}),
    (evaluation_lost, {"evaluation": "RF111"}),
]


@pytest.mark.parametrize(("spoil", "expected"), FAULTS, ids=[spoil.__name__ for spoil, _ in FAULTS])
def test_a_fault_in_the_data_fails_its_own_check(spoil, expected):
    runs = sound_runs()
    spoil(runs)
    assert failures(run_checks(runs)) == expected
    assert set(filter(None, expected.values())) <= set(CATALOG)


def own_contents(runs):
    """What the data is depends on the number of processes: rank 0 has not what one process has, either."""
    contents(runs["many"], [0, 1], lambda i: f"{i} of two")
    contents(runs["reference"], [0], str)


def same_samples(runs):
    """Ranks that compute with the same batch draw the same for it."""
    for rank in (0, 1):
        insert(runs["many"], [rank], BackwardCall, row_draw(rank, "state", samples="of all ranks"))


def dropout_of_one_seed(runs):
    for rank in (0, 1):
        for values in ({"op": "native_dropout"}, {"op": "rand", "in_model": True}):
            insert(runs["many"], [rank], BackwardCall, row_draw(rank, "state", **values))


@pytest.mark.parametrize("vary", [own_contents, same_samples, dropout_of_one_seed])
def test_what_may_be_so_is_not_accused(vary):
    runs = sound_runs()
    vary(runs)
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert verdicts["split"].status == verdicts["random_streams"].status == "PASS"
    assert ("dropout masks are the same" in (verdicts["random_streams"].note or "")) == (vary is dropout_of_one_seed)


def test_one_process_whose_sampler_is_never_told_the_epoch_is_not_accused():
    """As in `if args.distributed: sampler.set_epoch(epoch)`."""
    runs = sound_runs()
    for name in ("one", "original"):
        redraw(runs[name], lambda rank, epoch: order_of_epoch(0))
        samplers = ["BatchSampler", "DistributedSampler"]
        change(runs[name], IterationStart, having={"grad_enabled": True}, samplers=samplers)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "reshuffle")
    assert verdict.status == "PASS" and "set_epoch() is not called" in verdict.summary


def test_an_evaluation_of_counted_batches_is_judged_with_its_figures():
    runs = {name: run for name, run in sound_runs().items() if name in ("one", "many", "reference")}
    leave_evaluations_at_last_batch(runs)
    verdicts = {verdict.check: verdict for verdict in run_checks(runs)}
    assert verdicts["evaluation"].status == verdicts["metrics"].status == "PASS"
    assert verdicts["evaluation"].summary == "2 evaluations of 6 samples"
    change(runs["many"], OutputLine, text="epoch 0 accuracy 0.100")
    assert failures(run_checks(runs)) == {"metrics": "RF401"}


@pytest.mark.parametrize("is_drawn", [True, False])
def test_other_samples_may_be_drawn_only_where_the_ranks_have_streams_of_their_own(is_drawn):
    runs = sound_runs()
    split_differs_by_content(runs)
    if not is_drawn:
        change(runs["many"], IterationStart, streams={"torch": "of one seed"})
    note = next(verdict.note for verdict in run_checks(runs) if verdict.check == "split")
    assert ("drawn at random" in note) == is_drawn and "hash()" in note

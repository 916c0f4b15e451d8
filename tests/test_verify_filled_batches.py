"""Samples that fill up the last batch of all ranks: in the training, and in an evaluation that cuts them off."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from verify_evidence import (
    BATCH,
    TRAIN,
    VAL,
    Recorder,
    change,
    chunks,
    copy_of,
    events_of,
    iteration_start,
    order_of_epoch,
    redraw,
    remove,
    sound_runs,
    step_event,
)

from retrofit.verify.checks import CheckOptions
from retrofit.verify.checks.data.evaluation import evaluation
from retrofit.verify.checks.data.filling import num_filled
from retrofit.verify.checks.data.global_batch import global_batch_fault
from retrofit.verify.checks.data.shards import shards
from retrofit.verify.checks.training.rates.learning_rate import lr_fault
from retrofit.verify.evidence import Iteration, RankTrace, Run, flat
from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.events import (
    BatchDrawn,
    EpochOrder,
    IterationEnd,
    IterationStart,
    LoggedScalar,
    OptimizerStep,
    OutputLine,
    RowsCut,
    StateBeforeStep,
)
from retrofit.verify.trace.output.cut_rows import CutRows

EPOCHS = {
    "whole": ([[0, 1], [4, 5]], [[2, 3], [6, 7]], 0),
    "filled": ([[0, 1], [4, 5]], [[2, 3], [0, 1]], 2),
    "filled in the middle of a batch": ([[3, 1], [4, 5]], [[2, 0], [6, 3]], 1),
    "shorter than a batch": ([[0, 1, 2, 0]], [[1, 2, 0, 1]], 5),
    "others again": ([[0, 1], [4, 5]], [[2, 3], [2, 1]], 0),
    "a batch of both": ([[0, 1], [4, 5]], [[4, 5], [6, 7]], 0),
    "longer than a batch": ([[0, 1], [0, 1]], [[2, 3], [2, 3]], 0),
    "a batch more": ([[0, 1], [4, 5], [0, 1]], [[2, 3], [6, 7]], 0),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_the_first_samples_may_fill_up_the_last_batch_of_all_ranks(name):
    *ranks, expected = EPOCHS[name]
    begin = iteration_start(0, TRAIN, 8)
    assert num_filled([Iteration(begin, 0, order=batches) for batches in ranks]) == expected


def twelve_samples(runs):
    """One process has a batch of 8 and one of 4, the ranks have two batches of 4 each."""
    for name in ("one", "many", "reference"):
        change(runs[name], IterationStart, having={"grad_enabled": True}, length=12)
    order = {epoch: [x for x in order_of_epoch(epoch) if x < 12] for epoch in (0, 1)}
    redraw(runs["one"], lambda rank, epoch: order[epoch])
    turns = {epoch: chunks(order[epoch] + order[epoch][:4], BATCH // 2) for epoch in (0, 1)}
    redraw(runs["many"], lambda rank, epoch: flat(turns[epoch][rank::2]))


def test_filling_up_is_a_note_and_no_overlap():
    runs = sound_runs()
    twelve_samples(runs)
    verdict = shards(runs, CheckOptions())
    assert verdict.status == "PASS", verdict
    assert "4 of 16 samples of an epoch are the first ones once more" in verdict.note


def test_an_overlap_is_an_overlap():
    runs = sound_runs()
    twelve_samples(runs)
    change(runs["many"], BatchDrawn, [1], {"number": 1}, samples=[9, 10, 11, 8])
    for event in events_of(runs["many"], EpochOrder, [1]):
        event.batches[-1:] = [[9, 10, 11, 8]] if len(event.batches) > 1 else event.batches[-1:]
    verdict = shards(runs, CheckOptions())
    assert (verdict.status, verdict.cause) == ("FAIL", "RF103")


def test_a_filled_batch_that_is_the_whole_epoch_is_as_large_as_that_of_one_process():
    runs = {"many": trained(2, 7, 8), "one": trained(1, 7, 8)}
    assert global_batch_fault(runs) is None
    assert global_batch_fault({"many": trained(2, 16, 8), "one": trained(1, 7, 8)}) is not None


# --- schedules that count the batches of such an epoch ---------------------------------------------------------------


def trained(world, samples, length, batch=4):
    """Return a run of two epochs over so many samples with a rate that falls to 0 over `length` steps."""
    turns = chunks(list(range(samples)), batch)
    turns[-1] = turns[-1] + list(range(batch - len(turns[-1])))
    turns += [turns[0]] * (len(turns) % 2)
    ranks = []
    for rank in range(world):
        recorder = Recorder(rank)
        recorder.first_step = 0
        for epoch in range(2):
            number = recorder.begin(TRAIN, samples, epoch, 0, batch, True)
            order = turns[rank::world] if world > 1 else chunks(list(range(samples)), 2 * batch)
            recorder.add(EpochOrder(number, order, is_complete=True))
            for k, drawn in enumerate(order):
                recorder.add(BatchDrawn(number, k, drawn))
                step_event(recorder, 1.0, len(drawn))
                vars(recorder.events[-1]).update(lr=[max(0.0, 1.0 - (recorder.step - 1) / length)])
            recorder.add(IterationEnd(number, True, True, False, [], None))
        ranks.append(RankTrace(rank, recorder.events))
    return Run("many" if world > 1 else "one", world, ranks, [0] * world)


@pytest.mark.parametrize(("length", "is_fault"), [(15, False), (16.5, False), (8, True), (32, True)])
def test_a_length_that_is_rounded_otherwise_is_not_judged(length, is_fault):
    """60 samples are 15 batches of 4, and 8 of 8: two ranks make 16 steps of a schedule of 15, counted by twos."""
    fault = lr_fault({"many": trained(2, 60, length), "one": trained(1, 60, 16)})
    assert fault is not None and fault.undecided is not is_fault
    assert "its last batch is not full" in fault.summary or fault.cause == "RF305"


def test_where_the_last_batch_is_full_a_length_is_judged():
    fault = lr_fault({"many": trained(2, 64, 15), "one": trained(1, 64, 16)})
    assert fault is not None and fault.cause == "RF305" and not fault.undecided


@pytest.mark.parametrize(("counted", "cause"), [(2, "RF305"), (1, "RF304")])
def test_a_warm_up_that_is_stepped_twice_is_not_a_scaled_rate(counted, cause):
    runs = sound_runs()
    for name, times in (("one", 1), ("many", 2)):
        for event in events_of(runs[name], OptimizerStep):
            vars(event).update(lr=[0.01 * times * event.number])
        for rank in runs[name].ranks:
            last = max(i for i, event in enumerate(rank.events) if isinstance(event, OptimizerStep))
            count = 3 * (counted if name == "many" else 1)
            rank.events.insert(last, StateBeforeStep("LambdaLR 0", {"last_epoch": count}))
    fault = lr_fault(runs)
    assert fault is not None and fault.cause == cause


# --- evaluations -----------------------------------------------------------------------------------------------------


def filled_evaluation(kept=None):
    """Two samples too many in each evaluation, whose figures cannot be compared; as many rows are cut off, or not."""
    runs = sound_runs()
    for event in events_of(runs["many"], IterationStart, [1], dataset=VAL):
        change(runs["many"], BatchDrawn, [1], {"iteration": event.iteration}, samples=[1, 3, 5, 0, 2])
    for kind in (OutputLine, LoggedScalar):
        remove(runs["many"], kind)
    for event in events_of(runs["many"], IterationStart, dataset=VAL):
        if kept is not None:
            rank = next(rank for rank in runs["many"].ranks if any(event is other for other in rank.events))
            rank.events.append(copy_of(RowsCut(8, kept[rank.rank]), step=event.step))
    return runs


@pytest.mark.parametrize("kept", [(6, 6), (7, 7), (6, 8)])
def test_an_evaluation_that_cuts_off_what_is_too_much_is_not_accused(kept):
    verdict = evaluation(filled_evaluation(kept), CheckOptions())
    assert verdict.status == "NOT APPLICABLE" and "as many rows are cut off" in verdict.summary


@pytest.mark.parametrize("kept", [None, (5, 5), (7, 8)])
def test_an_evaluation_that_cuts_off_other_rows_or_none_is_inexact(kept):
    verdict = evaluation(filled_evaluation(kept), CheckOptions())
    assert (verdict.status, verdict.cause) == ("FAIL", "RF111")


def test_a_difference_of_the_figures_counts_more_than_what_is_cut_off():
    runs = filled_evaluation((6, 6))
    changed = sound_runs()["many"].ranks[0]
    shown = [event for event in changed.events if isinstance(event, (OutputLine, LoggedScalar))]
    for event in shown:
        place = max(i for i, other in enumerate(runs["many"].ranks[0].events) if other.step == event.step)
        wrong = copy_of(event, value=0.5) if isinstance(event, LoggedScalar) else copy_of(event, text="accuracy 0.5")
        runs["many"].ranks[0].events.insert(place + 1, wrong)
    verdict = evaluation(runs, CheckOptions())
    assert (verdict.status, verdict.cause) == ("FAIL", "RF111")


def test_rows_that_are_cut_off_are_recorded():
    events = []
    trace = OperatorTrace(events.append, controlled=False, rows=list)
    assert isinstance(trace.cuts, CutRows)
    guess = torch.arange(12.0).reshape(6, 2)
    with trace:
        guess[:2]
        trace.cuts.is_watched = lambda: True
        guess[:4], guess[:-1], guess.narrow(0, 0, 5)
        guess[1:], guess[:6], guess[:, :1], guess[::2]
        nn.Linear(2, 2)(guess)
    cut = [(event.rows, event.kept) for event in events if isinstance(event, RowsCut)]
    assert cut == [(6, 4), (6, 5), (6, 5)]

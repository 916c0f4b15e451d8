"""Numbers that a script gives out between two epochs, told apart from those that it gives out in its loop."""

from __future__ import annotations

from verify_evidence import Recorder, iteration_start

from retrofit.verify.checks.output.printed_numbers import summaries_of_epochs
from retrofit.verify.evidence import RankTrace
from retrofit.verify.trace.events import BackwardCall, BatchDrawn, IterationEnd, OutputLine

LINES = {"mean": "mean loss 0.5000", "batch": "loss of the batch 0.2500"}


def trace(*names):
    """Return a trace: "start" and "end" of a pass, "batch" and "train" of a batch, anything else is printed."""
    recorder, number = Recorder(), -1
    for name in names:
        if name == "start":
            number += 1
            recorder.add(iteration_start(number, "Rows:8:0", 8))
        elif name == "end":
            recorder.add(IterationEnd(number, True, is_exhausted=True, is_capped=False, draws=[], probe=None))
        elif name == "abandoned":
            recorder.add(IterationEnd(number, True, is_exhausted=False, is_capped=False, draws=[], probe=None))
        elif name == "drawn":
            recorder.add(BatchDrawn(number, 0, [0, 1]))
        elif name == "train":
            recorder.add(BackwardCall(0.25))
        else:
            recorder.add(OutputLine(LINES[name], "stdout"))
    return RankTrace(0, recorder.events)


def names_in(*names):
    return sorted(value.label for values in summaries_of_epochs(trace(*names)).values() for value in values)


def test_what_is_printed_after_a_pass_is_a_summary():
    epoch = ("start", "drawn", "train", "end", "mean")
    assert names_in(*epoch, *epoch) == ["the printed mean loss"] * 2


def test_what_is_printed_after_batches_that_were_drawn_at_once_is_a_summary():
    epoch = ("start", "drawn", "drawn", "end", "train", "train", "mean")
    assert names_in(*epoch, *epoch) == ["the printed mean loss"] * 2


def test_what_is_printed_in_the_loop_is_none():
    epoch = ("start", "drawn", "train", "batch", "drawn", "train", "batch", "end")
    assert names_in(*epoch, *epoch) == []


def test_what_is_printed_in_the_loop_and_after_it_is_none():
    epoch = ("start", "drawn", "drawn", "end", "train", "batch", "train", "batch")
    assert names_in(*epoch, *epoch) == []


def test_a_loader_that_is_left_after_a_batch_ends_no_epoch():
    step = ("start", "drawn", "abandoned", "train", "batch")
    assert names_in(*step, *step) == []

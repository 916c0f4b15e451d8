"""Reading traces, what is asked of them, the numbers in printed lines."""

from __future__ import annotations

import time

import pytest
from verify_evidence import TRAIN, change, collective_call, copy_of, iteration_start, process, run_of, spoil

from retrofit.verify.checks.output.paths import is_temporary, names_rank
from retrofit.verify.checks.output.printed_numbers import skeleton, values_after_evaluations
from retrofit.verify.evidence import RankTrace, load_run, read_events, relative_difference
from retrofit.verify.trace.events import (
    BackwardCall,
    BatchDrawn,
    IterationEnd,
    OptimizerStep,
    OutputLine,
    line_of,
)


def write(folder, rank, trace):
    lines = "".join(line_of(event, event.seconds, event.step) for event in trace.events)
    (folder / f"rank{rank}.jsonl").write_text(lines, encoding="utf-8")


def test_a_run_is_read_from_its_folder(tmp_path):
    for rank in (0, 1):
        write(tmp_path, rank, process(rank, 2))
    (tmp_path / "rank0.log").write_text("hello", encoding="utf-8")
    run = load_run("many", tmp_path, 2, statuses=[0, 0], seconds=3.5)
    assert (run.name, run.world_size, run.finished, run.num_steps, run.num_epochs) == ("many", 2, True, 4, 2)
    assert run.logs == ["hello", ""] and run.seconds == 3.5
    assert [vars(event) for event in run.ranks[1].events] == [vars(event) for event in process(1, 2).events]


def test_a_rank_without_a_trace_has_no_events(tmp_path):
    run = load_run("many", tmp_path, 2, statuses=[1, None], hung=True, stacks={0: "train.py:3 in main"})
    assert [rank.events for rank in run.ranks] == [[], []]
    assert (run.finished, run.num_steps, run.num_epochs, run.main.exit) == (False, 0, 0, None)


def test_a_torn_last_line_is_left_out(tmp_path):
    write(tmp_path, 0, process(0, 1))
    path = tmp_path / "rank0.jsonl"
    whole = read_events(path)
    path.write_bytes(path.read_bytes()[:-10])
    assert read_events(path) == whole[:-1]


def test_a_line_torn_in_the_middle_is_an_error(tmp_path):
    path = tmp_path / "rank0.jsonl"
    line = line_of(BackwardCall(0.5), 0.1, 0)
    path.write_text(f"{line}{line[:12]}\n{line}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"rank0.jsonl, line 2 is not an event: '\{\"event\": \"B'; run verify again"):
        read_events(path)


def test_a_hundred_thousand_lines_are_read_in_seconds(tmp_path):
    trace = RankTrace(0, [])
    step = process(0, 1).steps[0]
    for number in range(25_000):
        events = [BatchDrawn(0, number, [number]), BackwardCall(0.5), collective_call("allreduce_", 10)]
        trace.events += [spoil(event, step=number) for event in (*events, copy_of(step, number=number))]
    trace.events.insert(0, iteration_start(0, TRAIN, 16))
    write(tmp_path, 0, trace)
    started = time.process_time()
    run = load_run("one", tmp_path, 1, statuses=[0])
    assert run.main.rows_per_step == [1] * 25_000
    assert run.main.step_places[-1] == (0, 0, 24_999)
    assert time.process_time() - started < 5


def test_iterations_are_classified_as_training_or_evaluation():
    trace = process(1, 2)
    train, val, *_ = trace.iterations
    assert [one.train for one in trace.iterations] == [True, False, True, False]
    assert train.place == (TRAIN, 0, 0) and train.is_whole and train.exhausted and train.length == 16
    assert sorted(train.drawn) == sorted(train.delivered) and len(train.drawn) == 8
    assert val.drawn == [1, 3, 5]
    assert trace.rows_per_step == [4, 4, 4, 4]
    assert trace.step_places == [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)]


def test_an_iteration_without_an_end_is_training_when_steps_followed():
    trace = process(0, 1)
    trace.events = [event for event in trace.events if not isinstance(event, IterationEnd)]
    assert [one.train for one in trace.iterations] == [True, False, True, False]


def test_samples_that_are_lists_of_indices_can_be_compared():
    run = run_of("one")
    change(run, BatchDrawn, samples=[[1, 2], [3, 4]])
    assert run.main.iterations[0].delivered == [(1, 2), (3, 4), (1, 2), (3, 4)]


@pytest.mark.parametrize(
    ("a", "b", "floor", "expected"),
    [
        (1.0, 1.0, 0.0, 0.0),
        (2.0, 1.0, 0.0, 0.5),
        (1e-9, 0.0, 1.0, 1e-9),
        (float("nan"), float("nan"), 0.0, 0.0),
        (float("nan"), 1.0, 0.0, float("inf")),
        (float("inf"), float("inf"), 0.0, 0.0),
        (float("inf"), 1.0, 0.0, float("inf")),
    ],
)
def test_relative_differences(a, b, floor, expected):
    assert relative_difference(a, b, floor) == expected


# --- printed lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "pattern", "numbers"),
    [
        ("acc 0.812", "acc #", ["0.812"]),
        ("epoch 3/10: loss=1.5e-3, mAP50 .25", "epoch #/#: loss=#, mAP50 #", ["3", "10", "1.5e-3", ".25"]),
        ("IoU 81.2% (nan)", "IoU #% (#)", ["81.2", "nan"]),
        ("[21:03:55.431958] loss 0.5", "[TIME] loss #", ["0.5"]),
        ("2026-01-31 12:05:09,123 INFO f1 0.5", "TIME TIME INFO f1 #", ["0.5"]),
        ("2026-01-31T12:05:09.5Z: f1:0.5 in 1 day, 2:03:04.5", "TIME: f1:# in # day, TIME", ["0.5", "1"]),
        ("class 10:53.21, 3:0.5", "class #:#, #:#", ["10", "53.21", "3", "0.5"]),
        ("resnet50 v2 in net.0.conv", "resnet50 v2 in net.0.conv", []),
    ],
)
def test_a_line_is_a_pattern_with_numbers(line, pattern, numbers):
    assert skeleton(line)[0] == pattern
    assert [text for _, text in skeleton(line)[1]] == numbers


def is_end_of_evaluation(event):
    return isinstance(event, IterationEnd) and not event.is_training


def printed_after_evaluation(*lines):
    trace = process(1, 2)
    place = next(i for i, event in enumerate(trace.events) if is_end_of_evaluation(event))
    trace.events[place + 1 : place + 1] = [OutputLine(line, "stdout") for line in lines]
    return [value.text for values in values_after_evaluations(trace).values() for value in values]


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("val loss 0.51 acc 0.82", ["0.51", "0.82"]),
        ("epoch 2 of 10", []),
        ("train_loss: 0.51 val_loss: 0.61", ["0.61"]),
        ("lr 0.001 acc 0.5", ["0.5"]),
        ("epoch took 12.5 sec", []),
        ("acc 0.5, 12.5 s", ["0.5"]),
        ("83.2 img/s", []),
        ("[rank 0] loss 0.51", ["0.51"]),
        ("max mem: 12.5 MB", []),
        ("loss nan", ["nan"]),
    ],
)
def test_only_numbers_about_the_model_are_compared(line, values):
    assert printed_after_evaluation(line) == values


def test_lines_during_the_training_are_not_metrics():
    trace = process(1, 2)
    for event in [event for event in trace.events if isinstance(event, OptimizerStep)]:
        place = next(i for i, other in enumerate(trace.events) if other is event)
        trace.events.insert(place, OutputLine("loss 0.5", "stdout"))
    assert values_after_evaluations(trace) == {}


def test_a_line_after_each_batch_of_an_evaluation_without_an_end_is_not_its_figure():
    trace = process(1, 2)
    place = next(i for i, event in enumerate(trace.events) if is_end_of_evaluation(event))
    _, order, batch = trace.events[place - 3 : place]
    spoil(order, batches=[batch.samples[:1], batch.samples[1:]])
    first, last = (copy_of(batch, samples=part, number=number) for number, part in enumerate(order.batches))
    lines = [OutputLine(f"batch loss 0.{number}", "stdout") for number in (1, 2)]
    trace.events[place - 1 : place + 1] = [first, lines[0], last, lines[1], OutputLine("mean loss 0.15", "stdout")]
    assert [[value.text for value in found] for found in values_after_evaluations(trace).values()] == [["0.15"]]


# --- files and causes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("logs/rank1.log", True),
        ("logs/train_r1.log", True),
        ("log.1.txt", True),
        ("gpu1/train.log", True),
        ("logs/rank10.log", False),
        ("runs/checkpoint_1.pt", False),
        ("runs/epoch1/last.pt", False),
        ("train.log", False),
    ],
)
def test_a_path_can_contain_the_rank(path, expected):
    assert names_rank(path, 1) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/tmp/tmpab12cd34/x", True),
        ("a/__pycache__/b.pyc", True),
        ("runs/last.pt.tmp", True),
        ("runs/last.pt", False),
        ("templates/part.txt", False),
    ],
)
def test_temporary_files_have_no_owner(path, expected):
    assert is_temporary(path) is expected

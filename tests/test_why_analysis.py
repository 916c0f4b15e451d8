"""`retrofit why` from marks alone: steps, waits for late ranks, causes and predicted gains."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console

from retrofit.why.analysis.balance import common_steps
from retrofit.why.analysis.causes import causes_of
from retrofit.why.analysis.picture import Picture, TooFewSteps, picture_of
from retrofit.why.analysis.remedies import remedies_for
from retrofit.why.analysis.steps import ALL_REDUCE, steps_of
from retrofit.why.analysis.waterfall import COMMUNICATION, LATENESS, REST, waterfall
from retrofit.why.charts import timeline
from retrofit.why.marks import BEGIN, END, MOMENT, Mark, Marks
from retrofit.why.page import card_as_html
from retrofit.why.report import card, scalars
from retrofit.why.terminal import print_card

STEPS = 20
USUAL = {"data": 1.0, "forward": 4.0, "backward": 8.0, "optimizer": 1.0, "print": 0.0, "save": 0.0, "all-reduce": 2.0}


class Clock:
    """Marks of one rank, with times in milliseconds."""

    def __init__(self, start: float) -> None:
        self.now, self.marks = start, list[Mark]()

    def add(self, kind: str, name: str, value: float = 0.0) -> None:
        self.marks.append(Mark(kind, name, self.now / 1e3, value))

    def during(self, name: str, milliseconds: float, value: float = 0.0) -> None:
        if milliseconds:
            self.add(BEGIN, name, value)
            self.now += milliseconds
            self.add(END, name, value)


def run_of(folder: Path, *of_ranks: dict[str, float], buckets: int = 1, size: float = 4e6, facts=None) -> Path:
    """Write the marks of ranks that take these milliseconds in each step, and meet at the end of a backward pass."""
    clocks = [Clock(1000.0) for _ in of_ranks]
    parts = [{**USUAL, **own} for own in of_ranks]
    queued = [0.0] * len(parts)
    for _ in range(STEPS):
        for clock, own in zip(clocks, parts):
            clock.during("data 0", own["data"], own.get("samples", 8))
            clock.now += own["forward"]
            clock.add(BEGIN, "backward")
            for _ in range(buckets):
                clock.now += own["backward"] / buckets
                clock.add(MOMENT, "bucket", size / buckets)
        last = max(clock.now for clock in clocks)
        for rank, (clock, own) in enumerate(zip(clocks, parts)):
            for _ in range(buckets if len(clocks) > 1 else 0):
                clock.now = max(clock.now, last) + own["all-reduce"] / buckets
                clock.add(MOMENT, "bucket done", size / buckets)
            clock.add(END, "backward")
            clock.during("optimizer", own["optimizer"])
            queued[rank] += own.get("queued", 0.0) / 1e3
            clock.add(MOMENT, "waited for a core", queued[rank])
            clock.during("print", own["print"])
            clock.during("save", own["save"])
    folder.mkdir()
    ddp = {"gradient_bytes": size, "bucket_mib": 25.0, "float32": True}
    for rank, clock in enumerate(clocks):
        known = {"rank": rank, "host": "a", "num_threads": 1, "cores": list(range(8)), "is_cuda": False, "ddp": ddp}
        text = json.dumps({**known, **(facts or {}), "marks": clock.marks})
        (folder / f"rank{rank}.json").write_text(text)
    return folder


def printed(found: Picture) -> str:
    """Return the card in the terminal."""
    stream = io.StringIO()
    print_card(found, Console(file=stream, width=200))
    return stream.getvalue()


def picture(folder: Path, *of_ranks: dict[str, float], alone: dict[str, float] | None = None, **options) -> Picture:
    many = run_of(folder / "many", *of_ranks, **options)
    return picture_of(many, None if alone is None else run_of(folder / "one", alone))


def test_a_step_has_its_parts_and_the_meeting_of_the_ranks(tmp_path: Path) -> None:
    step = picture(tmp_path, {}, {}).steps[5].ranks[0]
    expected = {"data": 1.0, "forward": 4.0, "backward": 8.0, "optimizer": 1.0}
    assert {name: round(1e3 * seconds, 6) for name, seconds in step.phases.items()} == expected
    assert [(one.kind, round(1e3 * (one.left - one.came), 6)) for one in step.meetings] == [(ALL_REDUCE, 2.0)]
    assert step.samples == 8 and round(1e3 * step.seconds, 6) == 16.0


def test_what_is_between_two_passes_over_the_training_data_is_an_evaluation() -> None:
    clock = Clock(0.0)
    for epoch in range(2):
        for _ in range(3):
            clock.during(f"data {2 * epoch}", 1.0, 8)
            clock.now += 2.0
            clock.during("backward", 3.0)
            clock.during("optimizer", 1.0)
        for _ in range(2):
            clock.during(f"data {2 * epoch + 1}", 1.0, 8)
            clock.now += 5.0
    steps = steps_of(clock.marks)
    assert [round(1e3 * step.seconds, 6) for step in steps] == [7.0, 7.0, 19.0, 7.0, 7.0]
    assert [step.has_evaluation for step in steps] == [False, False, True, False, False]
    assert round(1e3 * steps[2].phases["evaluation"], 6) == 12.0


LATE = {
    "data": ({"data": 21.0}, "its samples take longer to load"),
    "forward": ({"forward": 24.0}, "its forward pass takes longer"),
    "backward": ({"backward": 28.0}, "its backward pass takes longer"),
    "print": ({"print": 20.0}, "it prints more"),
    "save": ({"save": 20.0}, "it saves in every step"),
    "core": ({"forward": 14.0, "backward": 18.0, "queued": 19.0}, "it waits for a core"),
    "samples": ({"forward": 24.0, "samples": 16}, "its batches are larger"),
}


@pytest.mark.parametrize("name", LATE)
def test_the_late_rank_is_named_with_its_reason(tmp_path: Path, name: str) -> None:
    own, words = LATE[name]
    found = picture(tmp_path, {}, {}, own)
    cause = next(cause for cause in causes_of(found) if cause.name == "late-rank")
    assert cause.rank == 2 and words in cause.summary and cause.seconds == pytest.approx(20e-3)
    assert any(remedy.seconds == pytest.approx(20e-3) for remedy in remedies_for(found, [cause]))


ALL = {
    "logging": ({"print": 4.0}, {}),
    "saving": ({"save": 4.0}, {}),
    "loader": ({"data": 8.0}, {}),
    "small-buckets": ({"all-reduce": 4.0}, {"buckets": 40}),
    "slow-link": ({"all-reduce": 80.0}, {}),
    "threads": ({"queued": 4.0}, {"facts": {"num_threads": 8}}),
}


@pytest.mark.parametrize("name", ALL)
def test_what_holds_all_ranks_up_is_named(tmp_path: Path, name: str) -> None:
    own, options = ALL[name]
    assert [cause.name for cause in causes_of(picture(tmp_path, own, own, **options))] == [name]


def test_nothing_is_named_where_the_ranks_are_even(tmp_path: Path) -> None:
    found = picture(tmp_path, {}, {}, alone={})
    assert causes_of(found) == []
    assert "no cause is found" in printed(found)


def test_the_parts_are_the_whole_step_and_what_is_lost(tmp_path: Path) -> None:
    rows = {row.name: row for row in waterfall(picture(tmp_path, {}, {"forward": 14.0}, alone={}))}
    assert sum(row.seconds for row in rows.values()) == pytest.approx(26e-3)
    assert rows[LATENESS].seconds == pytest.approx(5e-3)  # one of two ranks waits 10 ms
    assert rows[COMMUNICATION].seconds == pytest.approx(2e-3)
    assert rows["forward and loss"].lost == pytest.approx(5e-3)
    assert rows[REST].seconds == pytest.approx(0.0, abs=1e-9)


def test_the_speed_up_is_that_of_samples(tmp_path: Path) -> None:
    found = picture(tmp_path, {}, {}, alone={})
    assert found.speedup == pytest.approx(2 * 14 / 16)


def test_half_the_samples_in_a_step_are_half_the_speed_up(tmp_path: Path) -> None:
    found = picture(tmp_path, {"samples": 4}, {"samples": 4}, alone={})
    assert found.speedup == pytest.approx(14 / 16)


def test_the_gain_of_half_the_bytes_is_half_of_what_is_not_hidden(tmp_path: Path) -> None:
    found = picture(tmp_path, {"all-reduce": 8.0}, {"all-reduce": 8.0})
    gains = {remedy.what: remedy.seconds for remedy in remedies_for(found, causes_of(found))}
    half = next(seconds for what, seconds in gains.items() if "16 bits" in what)
    assert half == pytest.approx(4e-3)


def test_the_card_is_plain_data(tmp_path: Path) -> None:
    found = card(picture(tmp_path, {}, {"forward": 24.0}, alone={}))
    assert json.loads(json.dumps(found))["causes"][0]["rank"] == 1


def test_too_few_steps_are_said(tmp_path: Path) -> None:
    run_of(tmp_path / "many", {}, {})
    for path in (tmp_path / "many").iterdir():
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "marks": content["marks"][:40]}))
    with pytest.raises(TooFewSteps, match="are needed"):
        picture_of(tmp_path / "many", None)


class FakeEvent:
    """An event in the queue of a GPU that needs 10 ms for what it is given: a mock, there is no GPU here."""

    queue = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at, FakeEvent.queue = FakeEvent.queue, FakeEvent.queue + 10.0

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at - self.at


def test_marks_with_a_gpu_have_the_times_of_its_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("is_available", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    marks = Marks()
    marks.add(BEGIN, "lost")
    marks.begin()
    with marks.during("backward"):
        marks.add_of_any_thread("bucket", 4.0)
    marks.settle()
    marks.add(BEGIN, "lost, too")
    assert [mark.name for mark in marks.found] == ["backward", "bucket", "backward"]
    apart = [1e3 * (later.seconds - sooner.seconds) for sooner, later in zip(marks.found, marks.found[1:])]
    assert apart == pytest.approx([10.0, 10.0])


def test_a_call_that_is_waited_for_later_counts_from_when_it_was_made() -> None:
    def marks_of(before: float) -> list[Mark]:
        clock = Clock(0.0)
        for number in (1, 2, 3):
            start = clock.now
            clock.during("data 0", 1.0, 8)
            clock.now += before
            clock.add(MOMENT, "issued", number)
            clock.now = start + 30.0
            clock.during("collective all_gather_into_tensor", 2.0, number)
            clock.during("backward", 4.0)
            clock.during("optimizer", 1.0)
        return clock.marks

    (step, *_) = common_steps([steps_of(marks_of(5.0)), steps_of(marks_of(20.0))])
    (wait,) = step.waits
    assert wait.late == 1 and wait.late_by == 0.0 and wait.waits == [0.0, 0.0]
    assert 1e3 * wait.transfer == pytest.approx(2.0)


def test_marks_of_another_machine_are_moved_onto_one_clock(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "many", {}, {"forward": 24.0})
    path = folder / "rank1.json"
    content = json.loads(path.read_text())
    content["host"] = "b"
    content["marks"] = [[kind, name, seconds + 500.0, value] for kind, name, seconds, value in content["marks"]]
    path.write_text(json.dumps(content))
    found = picture_of(folder, None)
    (cause,) = (cause for cause in causes_of(found) if cause.name == "late-rank")
    assert cause.rank == 1 and cause.seconds == pytest.approx(20e-3)
    assert scalars(found)["why/late_ranks_ms"] == pytest.approx(10.0)


def test_one_process_that_is_faster_than_several_is_a_remedy(tmp_path: Path) -> None:
    found = picture(tmp_path, {"all-reduce": 60.0}, {"all-reduce": 60.0}, alone={})
    remedy = next(one for one in remedies_for(found, causes_of(found)) if one.what == "train on one process")
    assert found.speedup is not None and found.speedup < 1
    assert 1e3 * remedy.step_seconds(found) == pytest.approx(2 * 14.0)  # as many samples as two ranks have


@pytest.mark.parametrize(("size", "shown"), [(4e6, True), (4e8, False)])
def test_powersgd_is_for_a_slow_link_alone(tmp_path: Path, size: float, shown: bool) -> None:
    ddp = {"gradient_bytes": size, "powersgd_bytes": size / 20, "bucket_mib": 25.0, "float32": True}
    slow = {"all-reduce": 60.0}
    found = picture(tmp_path, slow, slow, size=size, facts={"ddp": ddp})
    remedies = [one for one in remedies_for(found, causes_of(found)) if "PowerSGD" in one.what]
    assert [1e3 * one.seconds for one in remedies] == ([pytest.approx(57.0)] if shown else [])


def test_a_step_with_thousands_of_prints_is_read_and_drawn_quickly(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "many", {"print": 20.0}, {})
    path = folder / "rank0.json"
    content = json.loads(path.read_text())
    marks = []
    for kind, name, seconds, value in content["marks"]:
        marks.append([kind, name, seconds, value])
        if (kind, name) == (BEGIN, "print"):
            for number in range(4000):
                marks.append([END, name, seconds + (number + 0.5) * 5e-6, value])
                marks.append([BEGIN, name, seconds + (number + 0.6) * 5e-6, value])
    path.write_text(json.dumps({**content, "marks": marks}))
    found = picture_of(folder, None)
    assert {cause.name for cause in causes_of(found)} == {"late-rank", "logging"}
    assert timeline(found).count("<path") < 200


def test_first_steps_that_meet_otherwise_are_left_out(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "many", {}, {})
    for path in folder.iterdir():
        content = json.loads(path.read_text())
        marks, made = [], 0
        for mark in content["marks"]:
            made += mark[:2] == [END, "optimizer"]
            marks.append(mark)
            if mark[:2] == [BEGIN, "backward"] and made < 8:
                marks += [[BEGIN, "collective all_reduce", *mark[2:]], [END, "collective all_reduce", mark[2], 0]]
        path.write_text(json.dumps({**content, "marks": marks}))
    found = picture_of(folder, None)
    assert len(found.steps) == STEPS - 8 - 1  # the last step has no end
    assert {meeting.kind for step in found.steps for meeting in step.ranks[0].meetings} == {ALL_REDUCE}


def test_a_slow_link_is_named_for_a_sharded_model_too(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "many", {"all-reduce": 0.0}, {"all-reduce": 0.0}, buckets=0)
    for path in folder.iterdir():
        content, later, marks = json.loads(path.read_text()), 0.0, []
        for kind, name, seconds, value in content["marks"]:
            marks.append([kind, name, seconds + later, value])
            if (kind, name) == (BEGIN, "backward"):
                marks.append([BEGIN, "collective all_gather_into_tensor", seconds + later, 4e6])
                later += 0.5
                marks.append([END, "collective all_gather_into_tensor", seconds + later, 0])
        path.write_text(json.dumps({**content, "marks": marks}))
    (cause,) = causes_of(picture_of(folder, None))
    assert cause.name == "slow-link" and "32 Mbit/s" in cause.evidence


def test_a_training_on_one_process_has_a_card_and_a_page(tmp_path: Path) -> None:
    found = picture(tmp_path, {"data": 10.0})
    assert "one process: 23.0 ms per step" in printed(found)
    assert [cause.name for cause in causes_of(found)] == ["loader"]
    assert "steps on 1 process<" in card_as_html(found, {})

"""A run of a tracker for all ranks: what the other ranks start instead of it."""

from __future__ import annotations

from typing import Any

import pytest

from retrofit.distributed import get_rank
from retrofit.distributed.output import start_tracker


class Task:
    """Stands for clearml.Task."""

    is_offline = False

    @classmethod
    def set_offline(cls, offline: bool) -> None:
        cls.is_offline = offline

    @classmethod
    def init(cls, name: str) -> tuple[str, bool]:
        return name, cls.is_offline


class Experiment:
    """Stands for comet_ml.Experiment."""

    def __init__(self, key: str, disabled: bool = False) -> None:
        self.disabled = disabled


def init_run(**options: Any) -> dict[str, Any]:
    """Stands for neptune.init_run."""
    return options


def fails() -> None:
    if get_rank() == 0:
        raise OSError("no key")


Task.__module__ = Task.init.__func__.__module__ = "clearml.task"
Experiment.__module__ = "comet_ml.experiment"
init_run.__module__ = "neptune.run"


def start_all() -> dict[str, Any]:
    unknown = start_tracker(dict, a=1)
    return {
        "clearml": start_tracker(Task.init, "name"),
        "comet": start_tracker(Experiment, "key").disabled,
        "neptune": start_tracker(init_run, project="a"),
        "unknown": unknown if isinstance(unknown, dict) else type(unknown).__name__,
    }


def start_one_that_fails() -> str:
    with pytest.raises((OSError, RuntimeError)) as raised:
        start_tracker(fails)
    return f"{type(raised.value).__name__}: {raised.value}"


def test_the_other_ranks_start_a_tracker_that_records_nothing(ranks: Any) -> None:
    main, other = ranks(2).run(start_all)
    assert main == {"clearml": ("name", False), "comet": False, "neptune": {"project": "a"}, "unknown": {"a": 1}}
    assert other == {
        "clearml": ("name", True), "comet": True, "neptune": {"project": "a", "mode": "debug"},
        "unknown": "SilentObject",
    }  # fmt: skip


def test_an_error_of_rank_0_is_raised_on_every_rank(ranks: Any) -> None:
    assert ranks(2).run(start_one_that_fails) == ["OSError: no key", "RuntimeError: rank 0 failed: OSError: no key"]


def test_one_process_makes_the_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_tracker(init_run, project="a") == {"project": "a"}
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call setup_distributed\(\) before it"):
        start_tracker(init_run)

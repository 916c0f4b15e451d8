"""Figures of rank 0 alone: what it shows is compared with what the other ranks would show."""

from __future__ import annotations

import contextlib
import io
import logging
import types

import pytest

from retrofit.distributed import get_rank, print_main
from retrofit.distributed.failure.shown_figures import differ, note_shown, say_where_ranks_differ, take_shown
from retrofit.distributed.output import HANDLE, on_main_process, quiet_logging

EQUAL = [
    ("loss 0.53", "loss 0.53"),
    ("loss 0.5300001", "loss 0.5300002"),  # rounding
    ("loss nan", "loss nan"),
    ("epoch 1 took 3.2 s", "epoch 1 took 4.8 s"),
    ("120.5 images/s, loss 0.5", "98.2 images/s, loss 0.5"),
    ("saved run1 at cuda:0", "saved run1 at cuda:1"),
    ("improved to 0.5", "no better than 0.6"),  # another text: what decides is no figure
    ("rank 0 of 2", "rank 1 of 2"),
    ("[12:05:09,123] f1 0.5", "[12:05:09,125] f1 0.5"),
    ("train/images_per_s 3.94", "train/images_per_s 3.93"),
]
DIFFERENT = [
    ("loss 0.53", "loss 0.54"),
    ("epoch 1, 43 of 64 right", "epoch 1, 41 of 64 right"),
    ("loss 0.5, 120.5 images/s", "loss 0.6, 98.2 images/s"),
    ("{'loss': 0.5}", "{'loss': nan}"),
    ("tensor([1., 2.])", "tensor([1., 3.])"),
    ("1e-3", "2e-3"),
]


@pytest.mark.parametrize("text, other", EQUAL)
def test_texts_with_the_same_figures(text: str, other: str) -> None:
    assert not differ(text, other)


@pytest.mark.parametrize("text, other", DIFFERENT)
def test_texts_with_other_figures(text: str, other: str) -> None:
    assert differ(text, other)


def said(show):
    """Return what a rank says of what `show` shows."""
    take_shown()
    text = io.StringIO()
    with contextlib.redirect_stderr(text), contextlib.redirect_stdout(io.StringIO()):
        show()
        say_where_ranks_differ(gathered(take_shown()))
    return text.getvalue()


def gathered(shown):
    from retrofit.distributed.collectives import gather_objects

    return gather_objects(shown)


def prints():
    for step in range(1, 9):
        print_main("step", step, "all", 0.5)
        print_main("step", step, "own", 0.5 + get_rank())


def logs():
    logger = logging.getLogger("of the test")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    try:
        quiet_logging()
        logger.info("own %.2f", get_rank())
    finally:
        logging.Logger.handle = HANDLE


def tracks():
    writer = on_main_process(types.SimpleNamespace, add_scalar=lambda *given: None, close=lambda: None)
    writer.add_scalar("all", 0.5, 1)
    writer.add_scalar("own", 0.5 + get_rank(), 1)
    writer.close()


def breaks():
    class Strange:
        def __str__(self):
            raise ValueError("on rank 1 only") if get_rank() else TypeError("on rank 0")

    note_shown(Strange())


@pytest.mark.parametrize("show", [prints, logs, tracks])
def test_rank_0_says_once_where_its_figures_are_its_own(ranks, show) -> None:
    first, *others = ranks(3).run(said, show)
    assert others == ["", ""]
    assert first.count("notice") == 1 and "(rank 1:" in first
    assert "own" in first and "all" not in first
    assert f"{__name__.rpartition('.')[2]}.py:" in first
    assert ranks(3).run(said, show) == ["", "", ""]  # said once


def test_a_value_that_cannot_be_shown_is_left_out(ranks) -> None:
    assert ranks(3).run(said, breaks) == ["", "", ""]


def test_one_process_notes_nothing() -> None:
    take_shown()
    print_main("loss", 0.5)
    assert take_shown() == {}

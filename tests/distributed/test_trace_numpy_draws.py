"""Noise of numpy for a batch is the same on one process and on several."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from traced_block import SEEDS, Events

from retrofit.verify.trace.events import UncontrolledDraw
from retrofit.verify.trace.randomness.draws import RowDraws
from retrofit.verify.trace.randomness.numpy_draws import BY_LENGTHS, PICKS, SIZE_AT, install_numpy_draws

FORMS = {
    "normal": lambda rows: np.random.normal(0, 1, (rows, 4)),
    "keyword": lambda rows: np.random.normal(loc=1.0, size=(rows, 4)),
    "lengths": lambda rows: np.random.randn(rows, 4),
    "one per row": lambda rows: np.random.uniform(-1, 1, rows),
    "weights of mixup": lambda rows: np.random.beta(0.2, 0.2, rows),
    "labels": lambda rows: np.random.randint(0, 10, rows),
    "labels of a type": lambda rows: np.random.randint(0, 10, size=(rows, 1), dtype=np.int32),
    "two views": lambda rows: np.random.random((2 * rows, 3)),
    "last dimension": lambda rows: np.random.rand(5, rows),
}


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(form, rows, parts)` draws with some of the SEEDS in hand, and gives the events."""
    for name in filter(partial(hasattr, np.random), (*SIZE_AT, *BY_LENGTHS, *PICKS)):
        monkeypatch.setattr(np.random, name, getattr(np.random, name))  # to be put back
    events, seeds = Events(), []
    install_numpy_draws(RowDraws(events, lambda: seeds))

    def draw(form, rows):
        seeds[:] = [SEEDS[row] for row in rows]
        torch.manual_seed(0)
        np.random.seed(len(rows))
        return form(len(rows)), np.random.get_state()[1][0], events

    return draw


@pytest.mark.parametrize("form", FORMS)
def test_a_row_is_what_it_is_in_the_whole_batch(drawn, form):
    whole, _, events = drawn(FORMS[form], range(6))
    part, _, _ = drawn(FORMS[form], [1, 4])
    if form == "two views":
        expected = whole.reshape(6, 2, 3)[[1, 4]].reshape(4, 3)
    else:
        expected = whole[:, [1, 4]] if form == "last dimension" else whole[[1, 4]]
    assert np.array_equal(part, expected) and part.dtype == whole.dtype
    assert len(np.unique(whole)) > 3, "rows differ"
    assert events == []


def test_the_stream_is_left_as_it_was(drawn):
    _, before, _ = drawn(lambda rows: None, range(6))
    _, after, _ = drawn(FORMS["normal"], range(6))
    assert before == after


@pytest.mark.parametrize("size", [None, (), 1, (0, 4)])
def test_what_has_no_rows_is_drawn_as_ever(drawn, size):
    value, _, events = drawn(lambda rows: np.random.normal(0, 1, size), range(6))
    np.random.seed(6)
    assert np.array_equal(value, np.random.mtrand._rand.normal(0, 1, size)) and events == []


def test_a_draw_without_rows_to_be_found_is_recorded(drawn):
    _, _, events = drawn(lambda rows: np.random.normal(0, 1, (5, 7)), range(6))
    assert [(event.op, event.shape) for event in events.of(UncontrolledDraw)] == [("normal", [5, 7])]


def test_outside_a_batch_nothing_changes(drawn):
    value, _, events = drawn(lambda rows: np.random.normal(0, 1, (6, 4)), [])
    np.random.seed(0)
    assert np.array_equal(value, np.random.mtrand._rand.normal(0, 1, (6, 4))) and events == []

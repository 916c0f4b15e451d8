"""Random draws of a controlled run are the same on one process and on several."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from traced_block import SEEDS, Events, controlled_block, in_float64

from retrofit.distributed import get_rank, get_world_size
from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.events import PairedRows, RowDraw, UncontrolledDraw


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def controlled():
    with controlled_block() as events:
        yield events


class Noisy(nn.Module):
    """Draws in all the usual ways: by shape, by likeness, in place, per sample, per token, for two views of a batch."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.rrelu, self.dropout2d = nn.RReLU(), nn.Dropout2d(0.3)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.2)

    def forward(self, x):
        rows = x.shape[0]
        hidden = F.dropout(self.first(x + 0.1 * torch.randn_like(x)), 0.4)
        hidden = self.rrelu(hidden) + torch.empty_like(hidden).normal_(0, 0.1)
        hidden = hidden * torch.empty(rows, 1).bernoulli_(0.8)
        hidden = hidden + torch.rand(rows, 8) * torch.randint(0, 9, (rows, 1)) / 9
        hidden = hidden + torch.normal(hidden.detach(), 0.1) + torch.bernoulli(torch.sigmoid(hidden.detach()))
        tokens = torch.stack([hidden, 2 * hidden, 3 * hidden, 4 * hidden], dim=1)  # (rows, 4, 8)
        tokens = F.dropout(tokens.reshape(rows * 4, 2, 4), 0.3).view(rows, 4, 8)  # with 2 rows: 2 is not theirs
        across = tokens[:, :3].transpose(0, 1)  # (3, rows, 8); with 3 rows the (rows * heads, 3, 3) within has two 3
        attended = self.attention(across, across, across)[0].transpose(0, 1)
        tokens = torch.cat([tokens[:, :1], tokens[:, 1:] + attended], 1)
        image = self.dropout2d(tokens.view(rows, 4, 2, 4)).contiguous(memory_format=torch.channels_last)
        image = F.dropout(image, 0.2)
        views = torch.cat([image.flatten(2).mean(1), tokens.mean(1)])  # the batch, then the batch again
        views = F.alpha_dropout(views, 0.2, training=True)
        picked = torch.multinomial(torch.softmax(views[:rows].detach(), 1), 2)
        hidden = views[:rows] + views[rows:] + hidden.gather(1, picked).sum(1, keepdim=True)
        return self.last(checkpoint(lambda h: F.dropout(torch.tanh(h), 0.5), hidden, use_reentrant=False))


def noisy_step(order=None):
    """Return loss, gradients and events of one step with this rank's share of six rows."""
    rank, world_size = (get_rank(), get_world_size()) if dist.is_initialized() else (0, 1)
    share = (order or list(range(6)))[rank::world_size]
    events = Events()
    with in_float64():
        torch.manual_seed(0)
        model = Noisy()
        data = torch.randn(6, 5)
        wrapped = DistributedDataParallel(model) if world_size > 1 else model
        with OperatorTrace(events, True, lambda: [SEEDS[i] for i in share]) as trace:
            for batch in range(2):  # gradients of two micro batches
                torch.manual_seed(batch)
                trace.new_batch()
                loss = wrapped(data[share]).square().mean()
                loss.backward()
        return loss.item(), [parameter.grad for parameter in model.parameters()], events.of(UncontrolledDraw)


PADDED = {
    "dropout of an attention": lambda length: F.dropout(torch.ones(6, 2, length, length), 0.5),
    "noise for tokens": lambda length: torch.rand(6, length, 7),
    "tokens first": lambda length: torch.randn(length, 6, 40).transpose(0, 1),
    "all tokens in one dimension": lambda length: F.dropout(torch.ones(6 * length, 40), 0.5).view(6, length, 40),
    "in place": lambda length: torch.zeros(6, 2, length, length).normal_(0, 0.1),
    "around means": lambda length: torch.normal(torch.ones(6, 3, length, length), torch.ones(length)),
    "of probabilities": lambda length: torch.bernoulli(torch.full((6, 3, length, length), 0.5)),
}


@pytest.mark.parametrize("form", PADDED)
def test_what_is_drawn_for_a_place_does_not_depend_on_the_padding(controlled, form):
    drawn = {}
    for length in (9, 33, 150):
        torch.manual_seed(1)
        drawn[length] = PADDED[form](length)
    for length in (9, 33):
        whole = drawn[150]
        for dim, size in enumerate(drawn[length].shape):
            whole = whole.narrow(dim, 0, size)
        assert torch.equal(whole, drawn[length])
    assert drawn[150].flatten(1).std(1).min() > 0 and not torch.equal(drawn[150][0], drawn[150][1])


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_noisy_network_trains_the_same_on_one_process_and_on_several(ranks, world_size):
    loss, gradients, uncontrolled = noisy_step()
    assert uncontrolled == []
    results = ranks(world_size).run(noisy_step)
    assert abs(sum(result[0] for result in results) / world_size - loss) < 1e-12
    for _, own, uncontrolled in results:
        assert uncontrolled == []
        for actual, expected in zip(own, gradients):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_draws_follow_the_seed_of_a_row_and_not_its_position(monkeypatch):
    loss, gradients, _ = noisy_step()
    other_loss, other, _ = noisy_step(order=[4, 1, 5, 0, 3, 2])
    assert abs(loss - other_loss) < 1e-12
    for actual, expected in zip(other, gradients):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    monkeypatch.setitem(globals(), "SEEDS", [1, 2, 3, 4, 5, 6])
    assert abs(noisy_step()[0] - loss) > 1e-3


def test_every_draw_of_a_row_is_new(controlled):
    first, second = torch.rand(6, 4), torch.rand(6, 4)
    assert len({round(float(value), 12) for value in torch.cat([first, second]).flatten()}) == 48


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda: torch.rand(6, 5000), 0.5),
        (lambda: torch.randn(6, 5000) + 1, 1.0),
        (lambda: F.dropout(torch.ones(6, 5000), 0.3), 1.0),
        (lambda: torch.native_dropout(torch.ones(6, 5000), 0.3, True)[0], 1.0),
        (lambda: torch.empty(6, 5000).exponential_(2.0), 0.5),
        (lambda: torch.randint(0, 11, (6, 5000)), 5.0),
        (lambda: torch.empty(5000, 6).uniform_(0, 2), 1.0),
        (lambda: torch.poisson(torch.full((6, 5000), 3.0)), 3.0),
        (lambda: torch.bernoulli(torch.full((12, 5000), 0.25)), 0.25),
        (lambda: torch.rand_like(torch.ones(6, 4, 25, 50).contiguous(memory_format=torch.channels_last)), 0.5),
        (lambda: torch.rand(6, 5000, out=torch.empty(6, 5000)), 0.5),
    ],
)
def test_draws_keep_their_distribution(controlled, draw, mean):
    values = draw()
    assert abs(float(values.double().mean()) - mean) < 0.05
    assert controlled == []


@pytest.mark.parametrize("draw", [lambda n: torch.randperm(n), lambda n: torch.randint(0, n, (n,))])
def test_a_sample_has_the_same_partner_in_the_joined_batch_of_all_ranks(draw):
    found = []
    for rows, parts in ((SEEDS, [[0, 1, 2], [3, 4, 5]]), (SEEDS[:3], [[0, 1, 2]]), (SEEDS[3:], [[0, 1, 2]])):
        torch.manual_seed(0)
        events = Events()
        with OperatorTrace(events, True, lambda rows=rows: rows) as trace:
            trace.draws.parts = lambda parts=parts: parts
            found.append([rows[partner] for partner in draw(len(rows)).tolist()])
        assert [(type(event), event.rows) for event in events] == [(PairedRows, len(rows))]
    assert found[0] == found[1] + found[2]


def test_an_empty_tensor_is_viewed_as_without_the_trace(controlled):
    assert torch.zeros(3, 0, 2).view(0, 6).shape == (0, 6)
    assert torch.zeros(0).view(0, 4).shape == (0, 4)


def test_a_draw_without_rows_is_unchanged_and_reported_once_per_place(controlled):
    for _ in range(3):
        torch.randn(5, 7)
        torch.rand(1)
    torch.randperm(5)
    torch.rand(6)
    found = [(event.op, event.shape) for event in controlled.of(UncontrolledDraw)]
    assert found == [("randn", [5, 7]), ("rand", [1]), ("randperm", [5])]
    for event in controlled.of(UncontrolledDraw):
        place, _, function = event.where.partition(" in ")
        assert (
            place.startswith("test_trace_draws.py:")
            and function == "test_a_draw_without_rows_is_unchanged_and_reported_once_per_place"
        )


@pytest.mark.parametrize(
    "reshape",
    [
        lambda x: x,
        lambda x: x.transpose(0, 1),
        lambda x: x.flatten(),
        lambda x: x.transpose(0, 1).flatten(),
        lambda x: torch.cat([x, x, x]),
        lambda x: x.repeat(4, 1, 1),
        lambda x: torch.stack([x, x, x]).flatten(0, 1),
        lambda x: torch.stack([x, x], 1).flatten(0, 1),
        lambda x: torch.cat([x.flatten(0, 1), x.flatten(0, 1)]),
        lambda x: x.repeat_interleave(2, 0),
        lambda x: x.repeat(1, 1, 4).view(-1, 5, 4, 7).permute(0, 2, 1, 3).reshape(-1, 5, 7),
        lambda x: x.transpose(0, 1).repeat(1, 1, 6).reshape(5, 3 * x.shape[0], 14),  # heads of an attention
        lambda x: x.repeat(1, 1, 6).reshape(-1, 2, 21),  # with two rows, that 2 is not theirs
    ],
)
def test_rows_are_found_in_any_memory_layout(events, reshape):
    def drawn(samples):
        with OperatorTrace(events, True, lambda: [SEEDS[sample] for sample in samples]):
            shaped = reshape(torch.tensor(samples).view(-1, 1, 1).expand(-1, 5, 7).contiguous())
            torch.manual_seed(3)
            values = torch.rand(shaped.shape)
        return [values[shaped == sample] for sample in (2, 4)]

    assert all(torch.equal(own, expected) for own, expected in zip(drawn([2, 4]), drawn([0, 1, 2, 3, 4, 5])))
    assert events == []


def test_a_new_batch_gets_a_new_layout(events):
    def drawn(trace):
        torch.manual_seed(3)
        trace.new_batch()
        return torch.rand(12, 4)

    with OperatorTrace(events, True, lambda: SEEDS) as trace:
        expected = drawn(trace)
        torch.cat([torch.ones(6, 4), torch.ones(6, 4)])
        assert torch.equal(drawn(trace), expected)


def test_a_draw_of_any_size_advances_the_stream_equally(controlled):
    after = []
    for shape in ((6, 3), (5, 7), (6, 900), ()):
        torch.manual_seed(5)
        torch.rand(shape)
        after.append(torch.get_rng_state())
    assert all(torch.equal(state, after[0]) for state in after)


def test_draws_outside_a_batch_are_unchanged_and_a_generator_advances_as_it_would(events):
    rows = []

    def draw():
        torch.manual_seed(3)
        own = torch.Generator().manual_seed(4)
        drawn = [torch.rand(6, 2), torch.rand(6, 2, generator=own), torch.empty(6).normal_(generator=own)]
        return [*drawn, own.get_state()]

    natural = draw()
    with OperatorTrace(events, True, lambda: rows):
        outside = draw()
        rows = SEEDS
        inside = draw()
    with OperatorTrace(events, False, lambda: SEEDS):
        uncontrolled = draw()
    for values in (outside, uncontrolled):
        assert all(torch.equal(value, expected) for value, expected in zip(values, natural))
    assert not any(torch.equal(value, other) for value, other in zip(inside[:3], natural))
    assert torch.equal(inside[3], natural[3])
    assert events.of(UncontrolledDraw) == []


def test_a_generator_of_the_scripts_own_draws_by_rows(events):
    def drawn(rows, seed):
        torch.manual_seed(0)
        with OperatorTrace(events, True, lambda: rows):
            return torch.randn(len(rows), 3, generator=torch.Generator().manual_seed(seed))

    whole = drawn(SEEDS, 1)
    assert torch.equal(torch.cat([drawn(SEEDS[:2], 2), drawn(SEEDS[2:], 3)]), whole)
    assert [draw.stream for draw in events.of(RowDraw)] == ["generator"] * 3

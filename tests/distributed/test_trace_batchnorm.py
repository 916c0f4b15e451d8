"""BatchNorm under the trace: noted in a natural run, synchronised in a controlled one, and failing where it fails."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from retrofit.distributed import get_rank, get_world_size
from retrofit.verify.trace.computation.batchnorm import install_batchnorm
from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.events import BatchStatistics, CollectiveCall, LocalBatchNorm


@contextmanager
def patched(controlled, rows=None):
    """Run the block with the patch and an operator trace; give the list of events."""
    events = []
    natural = F.batch_norm
    install_batchnorm(events.append, controlled, rows)
    try:
        with OperatorTrace(events.append, False, list):
            yield events
    finally:
        F.batch_norm = natural


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4, **options),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(16, 3),
        nn.BatchNorm1d(3),
    ).double()


def train(model, data):
    """Run two steps with this rank's share; return all that must be equal."""
    world_size = get_world_size() if dist.is_initialized() else 1
    share = data[get_rank() :: world_size] if world_size > 1 else data
    wrapped = DistributedDataParallel(model) if world_size > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = wrapped(share).tanh().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, [parameter.detach() for parameter in model.parameters()], [b.clone() for b in model.buffers()]


def batch():
    return torch.randn(6, 2, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 10


def train_on_ranks(options, controlled):
    with patched(controlled) as events:
        return train(network(**options), batch()), events


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"affine": False}, {"track_running_stats": False}, {"eps": 0.1}], ids=str
)
def test_a_controlled_run_has_the_statistics_of_the_whole_batch(ranks, world_size, options):
    losses, parameters, buffers = train(network(**options), batch())
    results = ranks(world_size).run(train_on_ranks, options, True)
    for (_, own_parameters, own_buffers), _ in results:
        for actual, expected in zip(own_parameters + own_buffers, parameters + buffers):
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    for step, loss in enumerate(losses):
        mean = sum(own_losses[step] for (own_losses, *_), _ in results) / world_size
        assert abs(mean - loss) < 1e-12


def test_a_natural_run_is_unchanged_and_noted_once(ranks):
    for (_, parameters, buffers), events in ranks(2).run(train_on_ranks, {}, False):
        assert [event for event in events if isinstance(event, LocalBatchNorm)] == [LocalBatchNorm(rows=3, channels=4)]
        assert not torch.equal(buffers[0], train(network(), batch())[2][0])
        assert len(parameters) == 8


def test_the_reductions_of_batchnorm_are_not_recorded_as_collectives_of_the_script(ranks):
    controlled = ranks(2).run(train_on_ranks, {}, True)
    natural = ranks(2).run(train_on_ranks, {}, False)
    assert controlled[0][1] == natural[0][1] == controlled[1][1], "the same events, in the same order"
    assert any(event.in_backward for event in natural[0][1] if isinstance(event, CollectiveCall))


def test_a_single_process_notes_its_samples_where_it_is_compared():
    with patched(True) as events:
        train(network(), batch())
    assert events == [BatchStatistics(rows=6)]
    with patched(False) as events:
        train(network(), batch())
    assert events == []


# --- running statistics that change between forward and backward


def two_forwards(kind):
    """Return what backward says (None: nothing) of two forwards before it, natural and controlled."""
    said = []
    for controlled in (False, True):
        with patched(controlled):
            model = network()
            wrapped = model
            if kind != "no ddp":
                wrapped = DistributedDataParallel(model)
            first = wrapped(batch())
            if kind == "changed":
                model[1].running_mean.mul_(1.0)
                dist.broadcast(model[1].running_var, 0)
            second = wrapped(batch())
            try:
                (first.sum() + second.sum()).backward()
                said.append(None)
            except RuntimeError as error:
                said.append(str(error))
    return said


@pytest.mark.parametrize("kind", ["no ddp", "ddp", "changed"])
def test_two_forwards_before_backward_fail_in_a_controlled_run_too(ranks, kind):
    for natural, controlled in ranks(2).run(two_forwards, kind):
        assert controlled == natural
        assert natural is None or kind != "no ddp"  # of plain DDP it depends on the version of torch
        if kind == "changed":
            assert "modified by an inplace operation: [torch.DoubleTensor [" in natural


# --- which calls need the other ranks


def alone(rows):
    with patched(True, None if rows is None else lambda: rows) as events:
        model = network()
        statistics = nn.BatchNorm2d(2, track_running_stats=False).double().eval()
        if get_rank() == 0:
            model.eval()(batch())
            with torch.no_grad():
                statistics(batch())
            if rows == []:
                model.train()(batch())  # a model summary before the first batch
    return events


@pytest.mark.parametrize("rows", [None, []], ids=["rows unknown", "outside a batch"])
def test_evaluation_needs_no_other_rank(ranks, rows):
    assert ranks(2).run(alone, rows, timeout_s=120.0) == [[], []]


def one_value():
    with patched(True), pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        nn.BatchNorm1d(3)(torch.ones(1, 3))


def test_one_value_per_channel_on_a_rank_is_still_an_error(ranks):
    ranks(2).run(one_value)


def penalty():
    """A gradient penalty: the second derivative of a BatchNorm."""
    world_size = get_world_size() if dist.is_initialized() else 1
    with patched(True):
        model = network().double()
        share = (batch()[get_rank() :: world_size] if world_size > 1 else batch()).requires_grad_()
        (gradient,) = torch.autograd.grad(model(share).tanh().sum(), share, create_graph=True)
        gradient.square().sum().backward()
        return [parameter.grad for parameter in model.parameters()]


def test_second_derivatives_go_through_all_ranks(ranks):
    expected = penalty()
    results = ranks(2).run(penalty)
    for number, value in enumerate(expected):
        torch.testing.assert_close(sum(own[number] for own in results), value, rtol=0, atol=1e-11)


def test_a_patched_model_can_be_scripted():
    with patched(True):
        model = network()
        scripted = torch.jit.script(network())
        torch.testing.assert_close(scripted(batch()), model(batch()))

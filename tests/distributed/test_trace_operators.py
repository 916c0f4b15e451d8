"""The operator trace sees every collective, and what makes a mean over ranks differ from the whole batch."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from traced_block import Events, controlled_block

from retrofit.distributed import get_rank, get_world_size
from retrofit.verify.trace.computation.nondeterministic import record_nondeterministic
from retrofit.verify.trace.computation.operators import OperatorTrace, untraced
from retrofit.verify.trace.events import CollectiveCall, NondeterministicOperator, SimilarityProduct, ValidCount

CAN_NAME_REDUCTIONS = hasattr(dist.ReduceOp, "unbox")  # not in torch 2.1


@pytest.fixture
def controlled():
    with controlled_block() as events:
        yield events


# --- collectives


def collectives():
    events = Events()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    with OperatorTrace(events, False, list):
        wrapped = DistributedDataParallel(model)
        events("constructed")
        wrapped(torch.ones(5, 4) * get_rank()).sum().backward()
        events("stepped")
        dist.barrier()
        dist.all_gather_object([None] * get_world_size(), {"rank": get_rank()})
        tensor = torch.ones(3, dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        dist.all_reduce(tensor, async_op=True).wait()
        dist.gather(tensor, [torch.empty_like(tensor)] * get_world_size() if get_rank() == 0 else None)
        with untraced():
            dist.all_reduce(tensor)
    return list(events)


def test_collectives_are_recorded_in_the_same_order_on_every_rank(ranks):
    first, second = ranks(2).run(collectives)
    assert first == second
    ops = [event if isinstance(event, str) else event.op for event in first]
    built, stepped = ops.index("constructed"), ops.index("stepped")
    assert "broadcast_" in ops[:built], "DDP's first broadcast of the weights"
    reduced = [event for event in first[built + 1 : stepped] if event.op == "allreduce_"]
    gradients = 4 * 3 + 3 + 3 + 3 + 3 * 2 + 2
    assert sum(event.numel for event in reduced) == gradients, "the gradients, from DDP's reducer"
    assert all(event.in_backward and event.dtype == "float32" for event in reduced)
    assert not any(event.in_backward for event in first[:built] + first[stepped + 1 :])
    own = [(event.op, event.numel, event.dtype, event.reduce) for event in first[stepped + 1 :]]
    assert own[0][0] == "barrier"
    assert own[-3:] == [
        ("allreduce_", 3, "float64", "max" if CAN_NAME_REDUCTIONS else None),
        ("allreduce_", 3, "float64", "sum" if CAN_NAME_REDUCTIONS else None),
        ("gather_", 3, "float64", None),
    ]
    assert [dtype for *_, dtype, _ in own[1:-3]] == ["int64", "uint8"], "an object is its length and its bytes"
    assert [event.number for event in first if isinstance(event, CollectiveCall)] == list(range(len(first) - 2))


def fail_in_collective():
    events = Events()
    with OperatorTrace(events, False, list), pytest.raises(RuntimeError):
        dist.broadcast(torch.ones(2).to_sparse(), 0)
    return events.of(CollectiveCall)


def test_a_collective_is_recorded_before_it_runs(ranks):
    for recorded in ranks(2).run(fail_in_collective):
        assert [event.op for event in recorded] == ["broadcast_"], "it failed, and was recorded all the same"


# --- evidence


def test_the_number_of_valid_targets_is_recorded(controlled):
    logits = torch.zeros(6, 3, 2, 2, requires_grad=True)
    target = torch.zeros(6, 2, 2, dtype=torch.long)
    target[0] = 255
    F.cross_entropy(logits, target, ignore_index=255).backward()
    F.cross_entropy(logits[:, :, 0, 0], target[:, 0, 0], ignore_index=255)
    F.cross_entropy(logits, target, ignore_index=255, reduction="sum")
    with torch.no_grad():
        F.cross_entropy(logits, target, ignore_index=255)
    F.cross_entropy(logits.detach(), target, ignore_index=255)
    assert controlled.of(ValidCount) == [ValidCount("nll_loss2d_forward", 20), ValidCount("nll_loss_forward", 5)]


def features(num=6, width=4):
    return nn.Linear(3, width)(torch.ones(num, 3))


@pytest.mark.parametrize(
    ("compute", "shape"),
    [
        (lambda: features() @ features().t(), [6, 6]),
        (lambda: torch.cat([features(), features()]) @ features(12).t(), [12, 12]),
        (lambda: torch.einsum("nc,mc->nm", features(), features()), [1, 6, 6]),
        (lambda: F.normalize(features()) @ F.normalize(features()).T / 0.1, [6, 6]),
        (lambda: nn.Embedding(9, 4)(torch.arange(6)) @ features().t(), [6, 6]),
        (lambda: features().detach() @ features().t(), [6, 6]),
        (lambda: torch.addmm(torch.zeros(6, 6), features(), features().t()), [6, 6]),
        # Not rows against rows:
        (lambda: nn.Linear(3, 6)(torch.ones(6, 3)), None),
        (lambda: nn.Linear(3, 6, bias=False)(torch.ones(6, 3)), None),
        (lambda: features() @ F.normalize(nn.Linear(4, 6).weight).t(), None),
        (lambda: nn.Linear(4, 6).weight @ nn.Linear(4, 6).weight.t(), None),
        (lambda: features(6, 4) @ features(5, 4).t(), None),
        (lambda: features(7) @ features(7).t(), None),
        (lambda: nn.MultiheadAttention(8, 2, batch_first=True)(*[torch.ones(6, 12, 8)] * 3), None),
        (lambda: features().detach() @ features().detach().t(), None),
        (lambda: features().t() @ features(), None),
    ],
)
def test_products_of_rows_with_rows_are_recorded(controlled, compute, shape):
    compute()
    with torch.no_grad():
        compute()
    assert controlled.of(SimilarityProduct) == ([SimilarityProduct(shape, rows=6)] if shape else [])


def test_evidence_is_limited(controlled):
    one = features()
    for _ in range(60):
        one @ one.t()
    assert len(controlled.of(SimilarityProduct)) == 50


# --- nondeterministic operators


def test_nondeterministic_operators_are_recorded_once_each(monkeypatch):
    events = Events()
    for name in ("filterwarnings", "simplefilter", "resetwarnings"):
        monkeypatch.setattr(warnings, name, getattr(warnings, name))
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with pytest.warns(UserWarning, match="something else") as shown:
            record_nondeterministic(events)
            warnings.filterwarnings("ignore")  # as many scripts do
            for _ in range(3):
                torch.zeros(4).put_(torch.tensor([0, 1]), torch.ones(2))
                nn.MaxUnpool1d(2)(torch.zeros(1, 1, 2), torch.zeros(1, 1, 2, dtype=torch.long))
            warnings.simplefilter("always")
            warnings.warn("something else", stacklevel=1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [event.op for event in events.of(NondeterministicOperator)] == ["put_", "max_unpooling2d_forward_out"]
    assert len(shown) == 1, "torch's own warnings are not shown: the script did not ask for them"

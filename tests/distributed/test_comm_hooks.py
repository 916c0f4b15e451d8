"""Compressed gradients: what arrives, and what travels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from retrofit.distributed import DDPWrapper
from retrofit.distributed.strategies.comm_hooks import POWERSGD_START, adds_bfloat16, register_comm_hook


def trained(hook, steps, layers=0):
    torch.manual_seed(0)
    between = [part for _ in range(layers) for part in (nn.Linear(64, 64), nn.Tanh())]
    model = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), *between, nn.Linear(64, 4))
    # A bucket for each of the layers between, and DDP reduces from the first step on.
    model = DDPWrapper(model, bucket_cap_mb=0.01, find_unused_parameters=False)
    register_comm_hook(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    x = torch.randn(16, 32, generator=generator)
    y = x[:, :4] * 2
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.mark.parametrize(("hook", "tolerance"), [("fp16", 1e-3), ("bf16", 1e-2), ("powersgd", 0.2)])
def test_training_with_a_hook_stays_close_to_plain_ddp_and_ranks_stay_equal(ranks, hook, tolerance):
    if hook == "bf16" and not all(ranks(2).run(adds_bfloat16, torch.device("cpu"))):
        with pytest.raises(AssertionError, match=r"gloo of torch .* cannot add bfloat16; use fp16, or a newer torch"):
            ranks(2).run(trained, hook, 1)
        return
    steps = POWERSGD_START + 10  # so that the approximation is at work as well
    (plain, _), _ = ranks(2).run(trained, "none", steps)
    (first, weights), (_, others) = ranks(2).run(trained, hook, steps)
    assert torch.equal(weights, others)
    assert first != plain, "the hook did nothing"
    assert first[-1] == pytest.approx(plain[-1], rel=tolerance) and first[-1] < 0.5 * first[0]


def test_powersgd_sends_many_buckets_in_the_same_order_on_all_ranks(ranks):
    """The hook sends three times per bucket; several at once are a deadlock over gloo, or get mixed up."""
    (first, weights), (_, others) = ranks(2).run(trained, "powersgd", POWERSGD_START + 10, 10)
    assert torch.equal(weights, others)
    assert first[-1] < first[0]

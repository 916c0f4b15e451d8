"""Compressed gradients: what arrives, and what travels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from retrofit.distributed import DDPWrapper
from retrofit.distributed.comm_hooks import POWERSGD_START, register_comm_hook


def trained(hook, steps):
    torch.manual_seed(0)
    model = DDPWrapper(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 4)))
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
    steps = POWERSGD_START + 10  # so that the approximation is at work as well
    (plain, _), _ = ranks(2).run(trained, "none", steps)
    (first, weights), (_, others) = ranks(2).run(trained, hook, steps)
    assert torch.equal(weights, others)
    assert first != plain, "the hook did nothing"
    assert first[-1] == pytest.approx(plain[-1], rel=tolerance) and first[-1] < 0.5 * first[0]

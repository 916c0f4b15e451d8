"""Steps without an optimizer: the model is found by the parameters that they change, and their rates are scaled."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(32, 3), torch.rand(32, 1)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
lr = 0.1
for x, y in loader:
    loss = nn.functional.mse_loss(model(x), y{reduction})
    model.zero_grad()
    loss.backward()
    {step}
"""


EACH = "for p in model.parameters():\n        "
STEPS = {
    f"{EACH}p.data.add_(-0.1 * p.grad)": "p.data.add_(rd.scaled_lr(-0.1) * p.grad)",
    f"{EACH}p.data.sub_(p.grad.data * lr)": "p.data.sub_(p.grad.data * rd.scaled_lr(lr))",
    f"{EACH}p.data.add_(p.grad, alpha=-lr)": "p.data.add_(p.grad, alpha=rd.scaled_lr(-lr))",
    f"{EACH}p.data.add_(-lr, p.grad.data)": "p.data.add_(rd.scaled_lr(-lr), p.grad.data)",
    f"{EACH}p.data = p.data - lr * p.grad": "p.data = p.data - rd.scaled_lr(lr) * p.grad",
    "for _, p in model.named_parameters():\n        p.data -= lr * p.grad": "p.data -= rd.scaled_lr(lr) * p.grad",
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_by_hand(step: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.format(reduction="", step=step))
    assert STEPS[step] in lines
    assert "model = rd.distribute_model(model)" in lines


def test_the_rate_stays_where_the_loss_is_a_sum(tmp_path: Path) -> None:
    step = f"{EACH}p.data.add_(-0.1 * p.grad)"
    lines = converted(tmp_path, SCRIPT.format(reduction=", reduction='sum'", step=step))
    assert "p.data.add_(-0.1 * p.grad)" in lines
    assert "model = rd.distribute_model(model)" in lines


@pytest.mark.parametrize("change", ["p.grad.clamp_(-1, 1)", "p.data.clamp_(-1, 1)", "p.grad = None"])
def test_what_makes_no_step_tells_of_no_model(change: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.format(reduction="", step=EACH + change))
    assert [finding.refusal for finding in result.refusals] == ["which model is trained could not be found out"]

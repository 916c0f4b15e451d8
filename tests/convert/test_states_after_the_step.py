"""Values that a batch sets after its step, and that the loss of the next batch is computed from."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def scaled(value):
    return value * 2


loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = torch.tensor(1.0)
for epoch in range(2):
    for (x,) in loader:
        BEFORE
        output = model(x)
        loss = (output.square().sum(1) - STATE).clamp(min=0).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        AFTER
"""
CARRIED = {
    "a quantile": ("pass", "state", "state = torch.tensor(np.quantile(output.detach().numpy(), 0.9))"),
    "its data": ("pass", "state", "state.data = torch.quantile(output.detach(), 0.9)"),
    "a batch": ("pass", "state", "state = output.detach()[:, 0]"),
    "a maximum": ("pass", "state", "state = output.detach().max()"),
    "through a function": ("pass", "scaled(state)", "state = output.detach()[:, 0]"),
    "read in a function": ("own = lambda: state", "own()", "state = output.detach()[:, 0]"),
    "read before the loss": ("before = state", "before", "state = output.detach()[:, 0]"),
    "by another name": ("pass", "state", "last = output.detach()[:, 0]\n        state = scaled(last)"),
    "kept after the epoch": ("pass", "kept", "state = output.detach()[:, 0]\n    kept = state"),
}
OWN = {
    "set before the loss": ("state = x[:, 0]", "state", "pass"),
    "set before and after": ("state = x[:, 0]", "state", "state = output.detach()[:, 0]"),
    "not read by the loss": ("pass", "1", "state = output.detach()"),
    "given to the function of the loss": (
        "pass",
        "scaled(1)",
        "state = output.detach()\n        shown = scaled(state).sum().item()",
    ),
    "no sample": ("pass", "state", "state = state * 0.9"),
}


def refusals(tmp_path: Path, form: tuple[str, str, str]) -> list[str]:
    before, state, after = form
    script = SCRIPT.replace("BEFORE", before).replace("STATE", state).replace("AFTER", after)
    return [finding.refusal for finding in conversion(tmp_path, script).refusals]


@pytest.mark.parametrize("form", CARRIED)
def test_a_state_for_the_next_batch_is_refused(tmp_path: Path, form: str) -> None:
    assert any("keeps samples of the batches before" in refusal for refusal in refusals(tmp_path, CARRIED[form]))


@pytest.mark.parametrize("form", OWN)
def test_a_value_of_the_batch_itself_is_none(tmp_path: Path, form: str) -> None:
    assert not refusals(tmp_path, OWN[form])

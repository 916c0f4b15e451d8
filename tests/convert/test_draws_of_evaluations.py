"""What an evaluation draws at random is the same on all ranks: by its figures they decide when the training ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(52, 6)
train_loader = DataLoader(TensorDataset(x[:36]), batch_size=6)
valid_loader = DataLoader(TensorDataset(x[36:]), batch_size=4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 16), nn.Linear(16, 1), {layer}

    def forward(self, x):
        h = torch.relu(self.a(x))
        {drop}
        return self.b(h)


@torch.no_grad()
def evaluate(model):
    {mode}
    largest = 0.0
    for (x,) in valid_loader:
        largest = max(largest, model(x).max().item())
    return largest


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
best = 1e9
for epoch in range(30):
    model.train()
    for (x,) in train_loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
    value = evaluate(model)
    if value > best:
        break
    best = value
"""
OFF, ON = "model.eval()", "pass"
DRAWN = {
    "a function that is always on": ("nn.Identity()", "h = F.dropout(h, 0.5)", OFF),
    "a function that is told to": ("nn.Identity()", "h = F.dropout(h, p=0.5, training=True)", OFF),
    "a layer made in the forward pass": ("nn.Identity()", "h = nn.Dropout(0.5)(h)", OFF),
    "a layer made in the forward pass by name": ("nn.Identity()", "drop = nn.Dropout(0.5); h = drop(h)", OFF),
    "noise": ("nn.Identity()", "h = h + torch.randn_like(h)", OFF),
    "a function, not switched off": ("nn.Identity()", "h = F.dropout(h, 0.5, self.training)", ON),
    "a layer, not switched off": ("nn.Dropout(0.5)", "h = self.c(h)", ON),
    "noise of the training, not switched off": (
        "nn.Identity()", "h = h + torch.randn_like(h) if self.training else h", ON,
    ),
    "noise after a return of another branch": (
        "nn.Identity()",
        "if len(h) > 99:\n            if not self.training: return h\n        h = h + torch.randn_like(h)",
        OFF,
    ),
    "an encoder, not switched off": ("nn.TransformerEncoderLayer(16, 2)", "h = self.c(h[None])[0]", ON),
}  # fmt: skip
NOT_DRAWN = {
    "a function, switched off": ("nn.Identity()", "h = F.dropout(h, 0.5, self.training)", OFF),
    "a function with its option": ("nn.Identity()", "h = F.dropout(h, 0.5, training=False)", ON),
    "a layer, switched off": ("nn.Dropout(0.5)", "h = self.c(h)", OFF),
    "a rate of zero": ("nn.Identity()", "h = F.dropout(h, 0.0)", OFF),
    "no dropout": ("nn.Identity()", "h = self.c(h)", ON),
    "noise after a return": (
        "nn.Identity()",
        "if not self.training: return h\n        h = h + torch.randn_like(h)",
        OFF,
    ),
    "noise of the training": ("nn.Identity()", "h = h + torch.randn_like(h) if self.training else h", OFF),
}


def lines(folder: Path, layer: str, drop: str, mode: str) -> list[str]:
    return converted(folder, SCRIPT.format(layer=layer, drop=drop, mode=mode))


@pytest.mark.parametrize("form", DRAWN)
def test_all_ranks_draw_the_same_in_an_evaluation(tmp_path: Path, form: str) -> None:
    assert "for (x,) in rd.evaluation.same_batches(valid_loader):" in lines(tmp_path, *DRAWN[form])


@pytest.mark.parametrize("form", NOT_DRAWN)
def test_an_evaluation_that_draws_nothing_stays(tmp_path: Path, form: str) -> None:
    assert "for (x,) in valid_loader:" in lines(tmp_path, *NOT_DRAWN[form])

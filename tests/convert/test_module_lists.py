"""What the modules in a list, a dict or a sequence of modules give is that of their own classes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def forward(self, x):
        outputs = []
        for layer in self.layers:
            x = layer(x)
            outputs.append(x)
        return outputs


class Scales(nn.Module):
    def __init__(self):
        super().__init__()
        {parts}

    def forward(self, x):
        outputs = []
        for {target} in {loop}:
            outputs.append(part(x))
        return outputs


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(16, 3)), 4, shuffle=True)
model, scales = nn.Linear(3, 3), Scales()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    fake, real = scales(model(x)), scales(x)
    loss = 0
    for k in range(2):
        for j in range(len(fake[k]) - 1):
            loss += 0.5 * F.l1_loss(fake[k][j], real[k][j].detach())
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("parts", "target", "loop"),
    [
        ("self.parts = nn.ModuleList(Layers() for _ in range(2))", "part", "self.parts"),
        ("self.parts = nn.ModuleList([Layers(), Layers()])", "k, part", "enumerate(self.parts)"),
        ("parts = [Layers() for _ in range(2)]; self.parts = nn.ModuleList(parts)", "part", "self.parts"),
        ("self.parts = nn.ModuleList(); self.parts.append(Layers())", "part", "self.parts"),
        ("self.parts = nn.ModuleDict(); self.parts['a'] = Layers()", "name, part", "self.parts.items()"),
        ("self.parts = nn.ModuleDict({'a': Layers(), 'b': Layers()})", "part", "self.parts.values()"),
        ("self.parts = nn.Sequential(Layers(), Layers())", "part", "self.parts"),
        ("self.parts = nn.Sequential(*[Layers() for _ in range(2)])", "part", "self.parts"),
    ],
)
def test_the_outputs_of_layers_are_not_taken_for_samples(parts: str, target: str, loop: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.format(parts=parts, target=target, loop=loop))
    assert "loss.backward()" in lines
    assert "optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))" in lines

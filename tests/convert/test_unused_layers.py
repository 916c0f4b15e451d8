"""RF204: which layers no forward pass runs, where a model is built from another one's layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.rules.model import unused_parameters
from retrofit.training import read_project

BACKBONE = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.layer1 = nn.Conv2d(4, 4, 3)
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        x = self.layer1(self.conv1(x))
        return self.fc(x.mean((2, 3)))

    def features(self, x):
        return self.layer1(self.conv1(x))

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = MAKE
        self.attention = Attention()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        USE
        return self.out(self.attention(x.mean((2, 3))))

def build(pretrained=True):
    net = Backbone()
    if pretrained:
        net.load_state_dict(torch.load("x.pth"))
    return net

def main():
    dist.init_process_group("gloo")
    data = [torch.randn(3, 8, 8)] * 8
    loader = DataLoader(data, 2, sampler=DistributedSampler(data))
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
LAYERS = "x = self.backbone.layer1(self.backbone.conv1(x))"


@pytest.mark.parametrize(
    ("make", "use", "is_found"),
    [
        ("build()", LAYERS, True),
        ("Backbone()", "x = self.backbone(x)[..., None, None]", False),
        ("Backbone()", "x = self.backbone.features(x)", False),
        ("Backbone()", f"{LAYERS}; y = self.backbone.fc(x.mean((2, 3)))", False),
        ("Backbone()", f"{LAYERS}; y = apply(self.backbone, x)", False),
        ("Backbone()", f"{LAYERS}; y = self.backbone.forward(x)", False),
        ("Backbone()", f"net = self.backbone; {LAYERS}; y = net(x)", False),
        ("nn.Sequential(Backbone())", "x = self.backbone(x)[..., None, None]", False),
    ],
)
def test_a_layer_counts_as_used_only_if_its_forward_is_called(
    make: str, use: str, is_found: bool, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(BACKBONE.replace("MAKE", make).replace("USE", use))
    found = list(unused_parameters.find(read_project(tmp_path / "train.py")))
    lines = (tmp_path / "train.py").read_text().splitlines()
    assert [lines[finding.place.line - 1].strip() for finding in found] == ["self.fc = nn.Linear(4, 10)"] * is_found

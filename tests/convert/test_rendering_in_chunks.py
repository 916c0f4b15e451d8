"""A batch of rays that goes through the model in chunks, whose results are put together by name: NeRF and its kin."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
from torch import nn


def render_chunk(net, rays):
    raw = net(rays)
    found = {"rgb": torch.sigmoid(raw[:, :3]), "depth": raw[:, 3]}
    if net.training:
        found["raw"] = raw
    return found


def render(net, rays, size):
    parts = PARTS
    for start in range(0, len(rays), size):
        chunk = render_chunk(net, rays[start : start + size])
        for name in chunk:
            if name not in parts:
                parts[name] = []
            parts[name].append(chunk[name])
    return {name: torch.cat(parts[name], 0) for name in parts}


np.random.seed(0)
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
all_rays = torch.randn(200, 6)
colours = torch.rand(200, 3)
net = nn.Linear(6, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(20):
    chosen = np.random.choice(200, size=[16], replace=False)
    found = render(net, all_rays[chosen], 6)
    loss = (found["rgb"] - colours[chosen]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("shown", *(p.abs().sum().item() for p in net.parameters()))
"""
PARTS = ["{}", "dict()", "{'rgb': [], 'depth': []}"]


@pytest.mark.parametrize("parts", PARTS)
def test_parts_under_names_are_not_taken_for_samples(tmp_path: Path, parts: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("PARTS", parts))
    assert not result.refusals
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert "rd.data.own_draw(np.random.choice(200, size=[rd.data.batch_of_ranks(16)], replace=False))" in text


def test_the_training_is_that_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, SCRIPT.replace("PARTS", PARTS[0]), launcher)

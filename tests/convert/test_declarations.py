"""Annotated names without a value, as the fields of a data class, next to questions for files."""

from __future__ import annotations

from pathlib import Path

from convert.conversion import converted

SCRIPT = """\
import os
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Settings:
    rate: float
    folder: str = "runs"


settings: Settings
settings = Settings(0.05)
is_new = not os.path.exists(settings.folder)
if is_new:
    print("made")
os.makedirs(settings.folder, exist_ok=True)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=settings.rate)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 6)), batch_size=8):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


def test_a_declaration_asks_for_no_file(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT)
    assert {"rate: float", "settings: Settings"} <= set(lines)

"""Tensors that are drawn with as many rows as a batch has: each rank keeps its own rows, also where they are shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.rand(32, 3), torch.rand(32, 1)), batch_size=8, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    {drawn}
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    print(drawn.tolist())
"""


@pytest.mark.parametrize(
    "drawn",
    [
        "drawn = torch.randint(0, 9, (len(x),))",
        "drawn = torch.randn((x.size(0), 2))",
        "drawn = torch.zeros((2 * len(x), 1)).uniform_()",
        "drawn = torch.full((x.shape[0],), 0.5)",
    ],
)
def test_the_rows_stay(drawn: str, tmp_path: Path) -> None:
    assert drawn in converted(tmp_path, SCRIPT.format(drawn=drawn))

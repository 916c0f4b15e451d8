"""A progress bar whose count the script reads counts on every rank, and is shown by the first."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{bar}
for (x,) in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
    {after}
"""
BARS = {
    "updated": ("bar = tqdm(total=4)", "bar.update(1); rest = 4 - bar.n"),
    "in an attribute": ("model.bar = tqdm(total=4)", "model.bar.update(1); rest = 4 - model.bar.n"),
}


@pytest.mark.parametrize("form", BARS)
def test_a_bar_whose_count_is_read_is_not_disabled(tmp_path: Path, form: str) -> None:
    bar, after = BARS[form]
    lines = converted(tmp_path, SCRIPT.format(bar=bar, after=after))
    hidden = 'file=None if rd.is_main_process() else open(rd.path_on_main("bar"), "w")'
    assert f"{bar[:-1]}, {hidden})" in lines


def test_another_bar_is_disabled(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.format(bar="bar = tqdm(total=4)", after="bar.update(1)"))
    assert "bar = tqdm(total=4, disable=not rd.is_main_process())" in lines

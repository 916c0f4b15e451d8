"""Figures in a tuple are reduced, or told by line, whichever part of the tuple is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Linear(4, 1)
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.rand(64, 4), torch.rand(64, 1)), batch_size=8, shuffle=True)


def moved(data):
    if len(data) == 2:
        x, y = data
        return x.to("cpu"), y.to("cpu")
    if len(data) == 1:
        (x,) = data
        return (x.to("cpu"),)


for batch in loader:
    {draw}
    losses = (criterion(model(x), y), (model(x) - y).abs().mean())
    losses[0].backward()
    optimizer.step()
    {show}
"""
PARTS = {
    "the last one": ("print(losses[-1].item())", "print(rd.reduce_loss(losses[-1]).item())"),
    "a numbered one": (
        "for k in range(2):\n        print(losses[k].item())",
        "print(rd.reduce_loss(losses[k]).item())",
    ),
    "those from an index on": (
        "print([part.item() for part in losses[1:]])",
        "print([rd.reduce_loss(part).item() for part in losses[1:]])",
    ),
    "those from the end": ("(other,) = losses[-1:]\n    print(other.item())", "print(rd.reduce_loss(other).item())"),
}


@pytest.mark.parametrize(("show", "expected"), PARTS.values(), ids=PARTS)
def test_a_part_of_a_tuple_of_losses_is_reduced(show: str, expected: str, tmp_path: Path) -> None:
    assert expected in converted(tmp_path, SCRIPT.format(draw="x, y = batch", show=show))


SHOWN = {
    "a tuple of one of two lengths": ("x, y = moved(batch)", "print(losses[1].item())"),
    "an entry of it": ("data = moved(batch)\n    x, y = data[0], data[1]", "print(losses[1].item())"),
    "the rest of it": ("data = moved(batch)\n    (y,) = data[1:]\n    x = data[0]", "print(losses[1].item())"),
    "a list of the figures": (
        "x, y = moved(batch)",
        "losses = [part.item() for part in losses]\n    print('{:.3f} {:.3f}'.format(*losses))",
    ),
}


@pytest.mark.parametrize(("draw", "show"), SHOWN.values(), ids=SHOWN)
def test_figures_of_a_batch_that_a_function_hands_on_are_not_forgotten(draw: str, show: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.format(draw=draw, show=show))
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    listed = [finding.message for finding in result.listed if "is printed" in finding.message]
    assert "rd.reduce_loss(" in text or listed


@pytest.mark.parametrize(
    "draw",
    [
        'x, y = map(lambda part: part.to("cpu"), batch)',
        'x, y = map(lambda part: part.to("cpu"), (batch[0], batch[1]))',
        "x, y = map(copied, batch)",
        "x, y = map(copied, moved(batch))",
    ],
)
def test_figures_of_a_batch_that_a_function_is_mapped_over_are_reduced(draw: str, tmp_path: Path) -> None:
    given = "def copied(part):\n    return part.clone()\n\n\nright = 0\nfor batch"
    show = "right += (model(x) > y).sum().item()"
    script = SCRIPT.replace("for batch", given).format(draw=draw, show=show) + "print(right)\n"
    result = conversion(tmp_path, script)
    assert "right += rd.reduce_total((model(x) > y).sum()).item()" in result.files[0].text
    assert not result.listed

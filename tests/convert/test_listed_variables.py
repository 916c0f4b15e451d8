"""Figures of one rank that a script shows by a dict: of all variables of a function, or given to a template."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def show(values):
    for name in ("epoch", "accuracy"):
        print(name, values.get(name))


def main():
    torch.manual_seed(0)
    x = torch.rand(32, 3)
    loader = DataLoader(TensorDataset(x, x.argmax(1)), batch_size=8, shuffle=True)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            outputs = model(x)
            optimizer.zero_grad()
            nn.functional.cross_entropy(outputs, y).backward()
            optimizer.step()
        {accuracy}
        {shown}


main()
"""
OWN = "accuracy = (outputs.argmax(1) == y).float().mean().item()"
SHOWN = [
    "show(locals())",
    "print('{accuracy}'.format(**vars()))",
    "print('%(accuracy).3f' % locals())",
    "print('{accuracy:.3f}'.format(**dict(accuracy=accuracy)))",
    "values = {'accuracy': accuracy}; print('{epoch} {accuracy}'.format(epoch=epoch, **values))",
]


@pytest.mark.parametrize("shown", SHOWN)
def test_a_figure_of_one_rank_is_listed(shown: str, tmp_path: Path) -> None:
    assert conversion(tmp_path, SCRIPT.format(accuracy=OWN, shown=shown)).listed


def test_a_figure_that_all_ranks_have_is_not(tmp_path: Path) -> None:
    shown = "show({'accuracy': accuracy}); print('{accuracy}'.format(**dict(accuracy=accuracy, y=y)))"
    script = SCRIPT.format(accuracy="accuracy = 1.0", shown=shown)
    assert not conversion(tmp_path, script).listed

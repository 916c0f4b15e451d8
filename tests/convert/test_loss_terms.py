"""Losses that count over the batch of one process, wherever they are made and called."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

HEAD = """\
import argparse
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--loss", default="ce")
parser.add_argument("--mean", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
weight = torch.ones(3)
loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randint(0, 3, (16,))), 4, shuffle=True)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """\
for x, y in loader:
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
"""
CALL = "criterion(model(x), y)"
MODULE = """\
class Loss(nn.Module):
    def __init__(self, weight=None):
        super().__init__()
        self.weight = weight
        self.smooth = nn.SmoothL1Loss()

    def forward(self, output, target):
        count = nn.CrossEntropyLoss(self.weight, size_average=args.mean)
        both = {"class": count(output, target), "box": self.smooth(output, output * 2)}
        return both, target


"""
TABLE = "table = {'ce': %s, 'mse': nn.MSELoss()}\n"


def find(tmp_path: Path, before: str, loss: str) -> list[str]:
    lines = converted(tmp_path, HEAD + before + TRAIN.replace("LOSS", loss))
    return [line for line in lines if "distribute_criterion" in line]


@pytest.mark.parametrize(
    ("before", "loss", "expected"),
    [
        ("criterion = partial(F.cross_entropy, ignore_index=2)\n", CALL, "(partial(F.cross_entropy, ignore_index=2))"),
        (TABLE % "nn.CrossEntropyLoss(weight)", "table[args.loss](model(x), y)", "(nn.CrossEntropyLoss(weight))"),
        (TABLE % "nn.NLLLoss(weight)" + "criterion = table.get(args.loss)\n", CALL, "(nn.NLLLoss(weight))"),
        (
            TABLE % "partial(F.cross_entropy, weight=weight)" + "criterion = table[args.loss]\n",
            CALL,
            "(partial(F.cross_entropy, weight=weight))",
        ),
        (
            "table = {'ce': partial(nn.CrossEntropyLoss, ignore_index=2), 'mse': nn.MSELoss}\n"
            "criterion = table[args.loss]()\n",
            CALL,
            "criterion = rd.loss.distribute_criterion(table[args.loss]())",
        ),
        (
            "options = dict(ignore_index=2)\ncriterion = nn.CrossEntropyLoss(**options)\n",
            CALL,
            "(nn.CrossEntropyLoss(**options))",
        ),
        (
            "if args.mean:\n    criterion = nn.MSELoss()\nelse:\n    criterion = nn.CrossEntropyLoss(ignore_index=2)\n",
            CALL,
            "(nn.CrossEntropyLoss(ignore_index=2))",
        ),
        (
            "def ce(output, target):\n    return F.cross_entropy(output, target, weight)\n\n\n" + TABLE % "ce",
            "table[args.loss](model(x), y)",
            "rd.loss.distribute_criterion(F.cross_entropy)(output, target, weight)",
        ),
        (
            MODULE + "criterion = Loss(weight)\n",
            "sum(criterion(model(x), y)[0].values())",
            "(nn.CrossEntropyLoss(self.weight, size_average=args.mean))",
        ),
    ],
)
def test_a_loss_that_divides_by_a_count_counts_over_all_processes(
    before: str, loss: str, expected: str, tmp_path: Path
) -> None:
    (line,) = find(tmp_path, before, loss)
    assert expected in line


@pytest.mark.parametrize(
    ("before", "loss"),
    [
        ("criterion = partial(F.cross_entropy, label_smoothing=0.1)\n", CALL),
        (MODULE + "criterion = Loss(weight)\n", "criterion(model(x), y)[0]['box']"),
        ("criterion = partial(nn.CrossEntropyLoss, ignore_index=2)(reduction='none')\n", CALL + ".mean()"),
    ],
)
def test_a_loss_without_a_count_is_unchanged(before: str, loss: str, tmp_path: Path) -> None:
    assert find(tmp_path, before, loss) == []


@pytest.mark.parametrize(
    "loss", ["torch.sqrt(criterion(x, y))", "criterion(x, y) ** 0.5", "-torch.exp(-criterion(x, y))"]
)
def test_a_function_of_a_mean_is_listed(loss: str, tmp_path: Path) -> None:
    before = "criterion = nn.CrossEntropyLoss(ignore_index=2)\n"
    found = conversion(tmp_path, HEAD + before + TRAIN.replace("LOSS", loss)).findings
    (finding,) = (finding for finding in found if finding.code == "RF302")
    assert not finding.edits and "not a linear function" in finding.message


FOCAL = """\
class Focal(nn.Module):
    def __init__(self):
        super().__init__()
        self.ce = MADE

    def forward(self, x, y):
        logp = CALLED
        p = torch.exp(-logp)
        return ((1 - p) ** 2 * logp).mean()


criterion = Focal()
"""


@pytest.mark.parametrize(
    ("made", "called", "count"),
    [
        ("nn.CrossEntropyLoss()", "self.ce(x, y)", 0),
        ("nn.Identity()", "F.cross_entropy(x, y)", 0),
        ("nn.Identity()", "0.5 * F.cross_entropy(x, y)", 0),
        ("nn.CrossEntropyLoss(ignore_index=2)", "self.ce(x, y)", 1),
    ],
)
def test_a_function_of_the_mean_of_all_ranks_is_not_listed(made: str, called: str, count: int, tmp_path: Path) -> None:
    before = FOCAL.replace("MADE", made).replace("CALLED", called)
    planned = conversion(tmp_path, HEAD + before + TRAIN.replace("LOSS", "criterion(x, y)"))
    assert len([finding for finding in planned.findings if finding.code == "RF302"]) == count
    assert ("rd.loss.batch_mean(" in planned.files[0].text) == (count == 0)


@pytest.mark.parametrize(
    ("loss", "is_listed"),
    [("sorted([criterion(x, y), other(x, y)])[0]", True), ("list([criterion(x, y), other(x, y)])[0]", False)],
)
def test_a_choice_by_size_is_listed_and_a_choice_by_place_is_not(loss: str, is_listed: bool, tmp_path: Path) -> None:
    before = "criterion = nn.CrossEntropyLoss(ignore_index=2)\nother = nn.MultiMarginLoss()\n"
    found = conversion(tmp_path, HEAD + before + TRAIN.replace("LOSS", loss)).findings
    assert any("not a linear function" in finding.message for finding in found) == is_listed

"""Criteria of the project that are derived from one of torch: their options are those of their base class."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn import MSELoss
from torch.utils.data import DataLoader, TensorDataset


CLASS


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,))), batch_size=4)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = MADE
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAIN = "class Loss(nn.CrossEntropyLoss):\n    pass"
INNER = """\
class Loss(nn.CrossEntropyLoss):
    def forward(self, x, y):
        return super().forward(x * 2, y)"""
SET_UP = """\
class Loss(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__(%s)

    def forward(self, x, y):
        return super(Loss, self).forward(x, y)"""
HANDED_ON = """\
class Loss(nn.CrossEntropyLoss):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)

    def __call__(self, x, y):
        return super().__call__(x, y)"""
BY_NAME = """\
class Loss(MSELoss):
    def __init__(self):
        MSELoss.__init__(self, reduction="sum")

    def forward(self, x, y):
        return MSELoss.forward(self, x, F.one_hot(y, 3).float())"""
SET_LATER = """\
class Loss(nn.CrossEntropyLoss):
    def forward(self, x, y):
        self.reduction = "none"
        return super().forward(x, y).sum()"""
GRANDCHILD = "class Base(nn.CrossEntropyLoss):\n    pass\n\n\nclass Loss(Base):\n    pass"


def lines_with(tmp_path: Path, kind: str, made: str, part: str) -> list[str]:
    lines = converted(tmp_path, SCRIPT.replace("CLASS", kind).replace("MADE", made))
    return [line for line in lines if part in line]


@pytest.mark.parametrize(
    ("kind", "made", "expected"),
    [
        (PLAIN, "Loss(ignore_index=0)", "distribute_criterion(Loss(ignore_index=0))"),
        (GRANDCHILD, "Loss(ignore_index=0)", "distribute_criterion(Loss(ignore_index=0))"),
        (INNER, "Loss(ignore_index=0)", "distribute_criterion(super().forward)(x * 2, y)"),
        (SET_UP % "ignore_index=0", "Loss()", "distribute_criterion(super(Loss, self).forward)(x, y)"),
        ("", "nn.NLLLoss2d(ignore_index=0)", "distribute_criterion(nn.NLLLoss2d(ignore_index=0))"),
    ],
)
def test_what_counts_is_counted_over_all_ranks(tmp_path: Path, kind: str, made: str, expected: str) -> None:
    (line,) = lines_with(tmp_path, kind, made, "distribute_criterion")
    assert expected in line


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (PLAIN, 'Loss(reduction="sum")'),
        (INNER, "Loss(size_average=False)"),
        (SET_UP % 'reduction="sum"', "Loss()"),
        (HANDED_ON, 'Loss(reduction="sum")'),
        (BY_NAME, "Loss()"),
        (SET_LATER, "Loss()"),
    ],
)
def test_a_sum_stays_a_sum(tmp_path: Path, kind: str, made: str) -> None:
    assert lines_with(tmp_path, kind, made, "rd.loss.sum_loss(loss).backward()")


@pytest.mark.parametrize(("kind", "made"), [(PLAIN, "Loss()"), (INNER, "Loss(label_smoothing=0.1)")])
def test_a_plain_mean_is_unchanged(tmp_path: Path, kind: str, made: str) -> None:
    assert not lines_with(tmp_path, kind, made, "rd.loss")


def test_what_no_edit_can_count_is_left_to_the_reader(tmp_path: Path) -> None:
    kind = PLAIN.replace("pass", "def __call__(self, x, y):\n        return super().__call__(x, y)")
    script = SCRIPT.replace("CLASS", kind).replace("MADE", "Loss(ignore_index=0)")
    findings = [f for f in conversion(tmp_path, script).findings if f.code == "RF302"]
    assert findings and not any(finding.edits for finding in findings)

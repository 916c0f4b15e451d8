"""Whether a loss is a sum or a mean is read where an option of its function decides it, or is left to the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--average", action="store_true")
parser.add_argument("--how", default="sum")
args = parser.parse_args()


def compute(outputs, targets, average=False, how="sum"):
    BODY


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(22, 4)), 4, shuffle=True)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    loss = compute(model(x), x)
    loss.backward()
    optimizer.step()
"""
DECIDED = {
    "given at once": 'return nn.MSELoss(reduction="mean" if average else "sum")(outputs, targets)',
    "by a negation": 'return nn.MSELoss(reduction="sum" if not average else "mean")(outputs, targets)',
    "by a text": 'return nn.functional.mse_loss(outputs, targets, reduction="sum" if how == "sum" else "mean")',
    "in a name": 'way = "mean" if average else "sum"\n    return nn.MSELoss(reduction=way)(outputs, targets)',
    "of two": 'return nn.MSELoss(reduction="none" if how is None else "mean" if average else "sum")(outputs, targets)',
    "of an older option": "return nn.MSELoss(size_average=True if average else False)(outputs, targets)",
}
OPEN = {
    "a flag": 'return nn.MSELoss(reduction="mean" if args.average else "sum")(outputs, targets)',
    "a text": "return nn.MSELoss(reduction=args.how)(outputs, targets)",
    "an older option": "return nn.functional.mse_loss(outputs, targets, size_average=args.average)",
    "one of several": "return nn.MSELoss(reduction=args.how)(outputs, targets) + outputs.pow(2).mean()",
    "a table": 'return nn.L1Loss(reduction={"a": "sum", "b": "mean"}[args.how])(outputs, targets)',
}


@pytest.mark.parametrize("form", DECIDED)
def test_a_sum_by_default_is_a_sum(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("BODY", DECIDED[form]))
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    assert "rd.loss.sum_loss(loss).backward()" in lines
    assert not any("rd.scaled_lr" in line for line in lines)


@pytest.mark.parametrize("form", DECIDED)
def test_a_mean_that_every_call_asks_for_is_a_mean(tmp_path: Path, form: str) -> None:
    call = 'compute(model(x), x, True, "mean")'
    result = conversion(tmp_path, SCRIPT.replace("BODY", DECIDED[form]).replace("compute(model(x), x)", call))
    assert "sum_loss" not in result.files[0].text
    assert not [finding for finding in result.findings if finding.code == "RF307"]


@pytest.mark.parametrize("form", OPEN)
def test_what_an_option_of_the_script_chooses_is_left_to_the_reader(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, SCRIPT.replace("BODY", OPEN[form]))
    (finding,) = (finding for finding in result.findings if finding.code == "RF307")
    assert finding.message.startswith("an option chooses whether a term is a sum") and not finding.edits

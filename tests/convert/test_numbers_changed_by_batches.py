"""Numbers of losses and rates that each batch changes by themselves: N processes make 1/N of the batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.cli import main
from retrofit.training.steps.counted.step_schedules import step_schedules

SCRIPT = """\
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randint(0, 3, (64,))), batch_size=8, shuffle=True)
criterion = nn.CrossEntropyLoss()


class Net(nn.Module):
    def __init__(self, heat=5.0):
        super().__init__()
        self.layer, self.heat = nn.Linear(4, 3), heat

    def anneal(self):
        self.heat = max(0.5, self.heat * 0.999)

    def forward(self, x):
        return self.layer(x) / self.heat


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
w = START
for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = LOSS
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        EACH
    LAST
"""
WEIGHED = "criterion(out, y) + w * out.pow(2).mean()"
CHANGED = [
    (WEIGHED, "w *= 0.99"),
    (WEIGHED, "w = w * 0.99"),
    (WEIGHED, "w = min(1.0, w + 0.01)"),
    (WEIGHED, "w = w + 0.1 * (1 - w)"),
    (WEIGHED, "w += 0.01"),
    ("criterion(out / w, y)", "w = max(0.5, w * 0.99)"),
    ("criterion(model(x + w * torch.randn_like(x)), y)", "w /= 1.01"),
    ("criterion(F.gumbel_softmax(out, tau=w), y)", "w *= 0.99"),
    ("F.cross_entropy(out, y, label_smoothing=w)", "w *= 0.99"),
    ("criterion(out, y) * (2.0 if random.random() < w else 1.0)", "w *= 0.99"),
    ("criterion(out, y)", "optimizer.param_groups[0]['lr'] *= 0.99"),
    ("criterion(out, y)", "w *= 0.99\n        optimizer.param_groups[0]['lr'] = w"),
]
OTHERS = [
    (WEIGHED, "pass", "w *= 0.9"),
    (WEIGHED, "if i == len(loader) - 1:\n            w *= 0.9", "pass"),
    (WEIGHED, "if i == 0:\n            w *= 0.9", "pass"),
    ("criterion(out, y)", "w = 0.9 * w + 0.1 * loss.item()\n        print(w)", "pass"),
    ("criterion(out, y)", "w *= 0.99\n        print(w)", "pass"),
    ("criterion(out, y)", "for p in model.parameters():\n            p.data *= 0.999", "pass"),
    ("sum(criterion(out, y) * f for f in [1.0, 0.5])", "w += 1", "pass"),
    ("criterion(model(x * 2), y)", "x *= 0.5", "pass"),
]


def script(loss: str, each: str, last: str = "pass", start: str = "1.0") -> str:
    text = SCRIPT.replace("LOSS", loss).replace("EACH", each).replace("LAST", last)
    return text.replace("START", start)


@pytest.mark.parametrize(("loss", "each"), CHANGED)
def test_a_number_that_batches_change_is_listed_at_its_line(loss: str, each: str, tmp_path: Path) -> None:
    text = script(loss, each)
    (listed,) = step_schedules(conversion(tmp_path, text).project)
    changing = each.splitlines()[0]
    assert text.splitlines()[listed.place.line - 1].strip() == changing and listed.schedule == changing
    assert "RETROFIT_BATCH=global" in listed.text


def test_tensors_and_attributes_are_numbers_as_well(tmp_path: Path) -> None:
    text = script(WEIGHED, "w.mul_(0.99)\n        model.anneal()", start="torch.tensor(1.0)")
    listed = step_schedules(conversion(tmp_path, text).project)
    assert {each.schedule for each in listed} == {"w.mul_(0.99)", "self.heat = max(0.5, self.heat * 0.999)"}


@pytest.mark.parametrize(("loss", "each", "last"), OTHERS)
def test_what_follows_epochs_or_samples_is_not_listed(loss: str, each: str, last: str, tmp_path: Path) -> None:
    assert step_schedules(conversion(tmp_path, script(loss, each, last)).project) == []


def test_it_is_listed_in_the_terminal_and_in_the_guide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(script(WEIGHED, "w *= 0.99"))
    monkeypatch.chdir(tmp_path)
    assert main(["convert", "train.py", "--write"]) == 0
    assert "each batch changes a number of the loss (w *= 0.99)" in capsys.readouterr().err
    assert "`w *= 0.99`" in (tmp_path / "MULTI_GPU.md").read_text()

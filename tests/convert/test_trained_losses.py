"""A loss that trains a part of itself, as an adversarial one, and calls its own methods: no model of another name."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Judge(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.body(x)


class Adversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.judge = Judge()
        self.optimizer = torch.optim.SGD(self.judge.parameters(), lr=0.1)

    def forward(self, fake, real):
        self.optimizer.zero_grad()
        loss = LOSS
        loss.backward()
        self.optimizer.step()
        return -self.judge(fake).mean()

    def difference(self, real, fake):
        return F.softplus(self.judge(fake)).mean() + F.softplus(-self.judge(real)).mean()

    def bce(self, real, fake):
        ones = F.binary_cross_entropy_with_logits(real, torch.ones_like(real))
        return ones + F.binary_cross_entropy_with_logits(fake, torch.zeros_like(fake))


class Losses(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = []
        for name in names:
            self.parts.append(Adversarial() if name == "gan" else nn.L1Loss())

    def forward(self, fake, real):
        return sum(part(fake, real) for part in self.parts)


loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 4)), batch_size=4, shuffle=True)
model = nn.Linear(4, 4)
criterion = Losses(["l1", "gan"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOSSES = {
    "of what it has computed": "self.bce(self.judge(real), self.judge(fake.detach()))",
    "of the samples": "self.difference(real, fake.detach())",
    "without a method": "(self.judge(fake.detach()) - self.judge(real)).mean()",
}


@pytest.mark.parametrize("form", LOSSES)
def test_the_part_that_is_trained_is_wrapped(form: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("LOSS", LOSSES[form]))
    assert not result.refusals
    lines = result.files[0].text.splitlines()
    assert lines.count("        self.judge = rd.distribute_model(self.judge)") == 1
    assert lines.count("model = rd.distribute_model(model)") == 1


LISTED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from library import Unknown


class Losses(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.parts = []
        for name in names:
            self.parts.append(CRITERION)

    def forward(self, fake, real):
        SUM


loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 4)), batch_size=4, shuffle=True)
model = nn.Linear(4, 4)
criterion = Losses(["l1", "l2"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SUMS = {
    "a generator": "return sum(part(fake, real) for part in self.parts)",
    "a list": "return sum([part(fake, real) for part in self.parts])",
    "a loop": "losses = []\n        for part in self.parts:\n            losses.append(part(fake, real))\n"
    "        return sum(losses)",
    "by number": "return sum(self.parts[i](fake, real) for i in range(len(self.parts)))",
}
CRITERIA = {
    "nn.L1Loss()": True,
    'nn.L1Loss() if name == "l1" else nn.MSELoss()': True,
    "Unknown(name)": True,
    'nn.L1Loss(reduction="sum")': False,
}


@pytest.mark.parametrize("form", SUMS)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_a_sum_over_criteria_in_a_list_is_not_one_over_the_samples(form: str, criterion: str, tmp_path: Path) -> None:
    script = LISTED.replace("SUM", SUMS[form]).replace("CRITERION", criterion)
    text = conversion(tmp_path, script).files[0].text
    assert ("rd.loss.sum_loss(" in text) != CRITERIA[criterion]
    assert ("lr=rd.scaled_lr(0.1)" in text) == CRITERIA[criterion]

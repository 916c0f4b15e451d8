"""Losses of samples that a training draws in its steps, as of a generator, are figures of one rank, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True, drop_last=True)
G, D = nn.Linear(3, 4), nn.Linear(4, 1)
g_optimizer = torch.optim.SGD(G.parameters(), lr=0.1)
d_optimizer = torch.optim.SGD(D.parameters(), lr=0.1)
criterion = nn.BCEWithLogitsLoss()


class Steps:
    def of_generator(self):
        noise = torch.randn(loader.batch_size, 3)
        LOSS
        g_optimizer.zero_grad()
        NAME.backward()
        g_optimizer.step()
        return RETURNED

    def of_discriminator(self, x):
        noise = torch.randn(x.size(0), 3)
        loss = D(G(noise).detach()).mean() - D(x).mean()
        d_optimizer.zero_grad()
        loss.backward()
        d_optimizer.step()


steps = Steps()
for epoch in range(2):
    for step, (x,) in enumerate(loader):
        steps.of_discriminator(x)
        value = steps.of_generator()
        SHOWN
"""
# The loss, its name, what the step returns, what is printed, and the line that the reduction is in.
FORMS = {
    "criterion": (
        "logits = D(G(noise))\n        loss = criterion(logits, torch.ones_like(logits))",
        "loss", "{'g': loss}", "for key in value:\n            print(key, value[key].item())",
        "return {'g': rd.reduce_loss(loss)}",
    ),
    "mean": ("loss = -D(G(noise)).mean()", "loss", "loss.item()", "print(value)", "return rd.reduce_loss(loss).item()"),
    "attribute": (
        "self.loss = -D(G(noise)).mean()", "self.loss", "float(self.loss)", "print(f'{value:.3f}')",
        "return float(rd.reduce_loss(self.loss))",
    ),
    "two terms": (
        "fake = G(noise)\n        loss = F.relu(1 - D(fake)).mean() + 0.1 * fake.pow(2).mean()", "loss",
        "loss.detach()", "print(value.item())", "return rd.reduce_loss(loss).detach()",
    ),
    "in place": (
        "noise = torch.empty(loader.batch_size, 3).normal_()\n        loss = F.softplus(-D(G(noise))).mean()", "loss",
        "loss.item()", "print(value)", "return rd.reduce_loss(loss).item()",
    ),
}  # fmt: skip


def script_of(name: str) -> tuple[str, str]:
    loss, variable, returned, shown, expected = FORMS[name]
    given = {"LOSS": loss, "NAME": variable, "RETURNED": returned, "SHOWN": shown}
    text = SCRIPT
    for place, value in given.items():
        text = text.replace(place, value)
    return text, expected


SCORES = """\
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
size = 8
loader = DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=size, shuffle=True)
G, D = nn.Linear(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD(G.parameters(), lr=0.1)
for epoch in range(2):
    for step, (x,) in enumerate(loader):
        fake = D(G(NOISE))
        loss = F.softplus(-fake).mean() + F.softplus(D(x)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), fake.mean().item())
"""
OF_THE_BATCH = (
    "torch.randn(x.size(0), 3)", "torch.randn((len(x), 3))", "torch.rand_like(x)[:, :3]", "torch.randn(size, 3)",
    "torch.randn([size, 3])", "torch.randn(loader.batch_size, 3)", "torch.empty(size, 3).normal_()",
    "torch.FloatTensor(size, 3).uniform_(-1, 1)", "torch.Tensor(np.random.normal(0, 1, (x.shape[0], 3)))",
    "torch.FloatTensor(np.random.normal(0, 1, size=(size, 3)))",
)  # fmt: skip
OF_A_FIXED_NUMBER = (
    "torch.randn(8, 3)", "torch.Tensor(8, 3).normal_()", "torch.FloatTensor(np.random.normal(0, 1, (8, 3)))",
)  # fmt: skip


@pytest.mark.parametrize("noise", OF_THE_BATCH)
def test_a_mean_over_drawn_samples_is_reduced(noise: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, SCORES.replace("NOISE", noise))
    assert not result.refusals and not result.listed
    assert "print(rd.reduce_loss(loss).item(), rd.reduce_loss(fake.mean()).item())" in result.files[0].text


@pytest.mark.parametrize("noise", OF_A_FIXED_NUMBER)
def test_samples_of_a_fixed_number_are_listed_with_the_figures_of_them(noise: str, tmp_path: Path) -> None:
    result = conversion(
        tmp_path, SCORES.replace("NOISE", noise).replace("fake.mean().item()", "(fake > 0).sum().item()")
    )
    assert "print(rd.reduce_loss(loss).item(), (fake > 0).sum().item())" in result.files[0].text
    shown, drawn = (finding.message for finding in result.listed)
    assert shown == "rank 0's share: (fake > 0).sum().item(), is printed"
    assert drawn.startswith("each rank draws its own: ") and "8, 3" in drawn


@pytest.mark.parametrize("name", FORMS)
def test_a_loss_of_drawn_samples_is_reduced(name: str, tmp_path: Path) -> None:
    text, expected = script_of(name)
    result = conversion(tmp_path, text)
    assert not result.refusals and not result.listed
    assert expected in [line.strip() for line in result.files[0].text.splitlines()]


def test_all_ranks_come_to_the_reduction(tmp_path: Path, launcher: Launcher) -> None:
    text, _ = script_of("criterion")
    write_converted(tmp_path, conversion(tmp_path, text))
    run = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]

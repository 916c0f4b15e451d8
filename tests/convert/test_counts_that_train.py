"""Numbers of samples that are counted over the batches, and by which a training goes on, are those of all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(22, 4))
batch_size = 4
loader = DataLoader(data, batch_size=batch_size)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x, alpha=1.0):
        return alpha * self.layer(x)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
alpha = 0.1
for epoch in range(2):
    for (x,) in loader:
        out = OUT
        loss = (out - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        COUNT
        alpha = min(alpha, 1)
        print("shown", loss.item())
"""
FORMS = {
    "a factor": ("alpha * model(x)", "alpha += len(x) / len(data)", "alpha += rd.reduce_total(len(x) / len(data))"),
    "an argument of the model": (
        "model(x, alpha)", "alpha += x.size(0) / 44", "alpha += rd.reduce_total(x.size(0) / 44)",
    ),
    "an argument by name": (
        "model(x, alpha=alpha)", "alpha += x.shape[0] / 44", "alpha += rd.reduce_total(x.shape[0] / 44)",
    ),
    "the batch size": (
        "model(x, alpha)", "alpha += batch_size / 44", "alpha += rd.loss.global_batch(batch_size) / 44",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_count_that_trains_is_of_all_ranks(name: str, tmp_path: Path) -> None:
    out, count, expected = FORMS[name]
    assert expected in converted(tmp_path, SCRIPT.replace("OUT", out).replace("COUNT", count))


def test_a_number_of_this_batch_alone_stays_that_of_a_rank(tmp_path: Path) -> None:
    script = SCRIPT.replace("OUT", "model(x, len(x) / 4)").replace("COUNT", "pass")
    assert not [line for line in converted(tmp_path, script) if "reduce_total" in line]


def test_two_processes_train_with_the_count_of_one(tmp_path: Path, launcher: Launcher) -> None:
    out, count, _ = FORMS["an argument of the model"]
    script = SCRIPT.replace("OUT", out).replace("COUNT", count)
    trains_as_one(tmp_path, script, launcher, rel=1e-6)

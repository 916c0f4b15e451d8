"""A criterion that is made for batches of one size is made for the batch of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SETTINGS


class Pairs(nn.Module):
    def __init__(self, batch_size, temperature):
        super().__init__()
        self.batch_size, self.temperature = batch_size, temperature
        self.keep = self.others(batch_size)

    def others(self, batch_size):
        keep = ~torch.eye(2 * batch_size, dtype=torch.bool)
        for i in range(batch_size):
            keep[i, batch_size + i] = keep[batch_size + i, i] = False
        return keep

    def forward(self, a, b):
        n = 2 * self.batch_size
        z = torch.cat([a, b])
        similar = z @ z.T / self.temperature
        positive = torch.cat([torch.diag(similar, self.batch_size), torch.diag(similar, -self.batch_size)])
        logits = torch.cat([positive.reshape(n, 1), similar[self.keep].reshape(n, -1)], dim=1)
        return F.cross_entropy(logits, torch.zeros(n, dtype=torch.long), reduction="sum") / n


class Clusters(nn.Module):
    def __init__(self):
        super().__init__()
        self.similarity = nn.CosineSimilarity(dim=2)

    def forward(self, a, b):
        share = a.sum(0) / a.sum()
        c = torch.cat([a.t(), b.t()])
        similar = self.similarity(c.unsqueeze(1), c.unsqueeze(0))
        return F.cross_entropy(similar, torch.arange(6), reduction="sum") / 6 + (share * share.log()).sum()


torch.manual_seed(0)
x = torch.randn(22, 4).double()
loader = DataLoader(TensorDataset(x, x + 0.1), batch_size=SIZE, drop_last=True)
net = nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)).double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
pairs, clusters = Pairs(GIVEN), Clusters()
for epoch in range(2):
    for x, y in loader:
        loss = pairs(net(x), net(y)) + clusters(net(x), net(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("shown", loss.item())
print("shown", net[0].weight.sum().item())
"""
FORMS = {
    "a constant": ("size = 4", "size", "size, 0.5"),
    "by its name": ("size = 4", "size", "batch_size=size, temperature=0.5"),
    "an entry": ('config = {"size": 4}', 'config["size"]', 'config["size"], 0.5'),
    "an option": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--size', type=int, default=4)\n"
        "args = parser.parse_args()", "args.size", "args.size, 0.5",
    ),
}  # fmt: skip
TO_THE_END = SCRIPT.replace(", drop_last=True", "")
EVALUATED = f"{SCRIPT}with torch.no_grad():\n    print(pairs(net(x), net(y)).item())\n"


def script_of(form: str, script: str = SCRIPT) -> str:
    settings, size, given = FORMS[form]
    return script.replace("SETTINGS", settings).replace("GIVEN", given).replace("SIZE", size)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_given_the_size_of_all_processes(form: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of(form))
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    _, size, given = FORMS[form]
    assert not result.refusals and not result.listed
    before, _, after = given.rpartition(size)
    assert f"Pairs({before}rd.loss.global_batch({size}){after})" in text
    assert "whole_batch_size" not in text and "own_batch_size" not in text and "sum_loss" not in text


def test_two_processes_train_as_one(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, script_of("a constant"), launcher, world_sizes=(1, 2))


@pytest.mark.parametrize(("script", "reason"), [(TO_THE_END, "drop_last=True"), (EVALUATED, "computed elsewhere")])
def test_it_is_refused_where_other_batches_come_to_it(script: str, reason: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of("a constant", script))
    assert any(reason in finding.refusal for finding in result.refusals)

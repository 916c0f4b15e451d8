"""Rows that classes of tensors, axes in variables and texts leave alone reach a loss that compares samples."""

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
from torch.autograd import Variable
from torch.utils.data import DataLoader, TensorDataset

AXIS = 1


class Meter:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value, n):
        self.sum, self.count = self.sum + value * n, self.count + n


def unit(x, axis=-1):
    return x / torch.norm(x, 2, axis, keepdim=True).expand_as(x)


def hardest(rows, labels):
    n = rows.size(0)
    distances = torch.cdist(rows, rows)
    same = labels.expand(n, n).eq(labels.expand(n, n).t())
    far, near = [], []
    for i in range(n):
        far.append(distances[i][same[i]].max().unsqueeze(0))
        near.append(distances[i][same[i] == 0].min().unsqueeze(0))
    far, near = torch.cat(far), torch.cat(near)
    return F.margin_ranking_loss(near, far, torch.ones_like(far), margin=0.3), (near >= far).sum().item()


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.arange(32) % 4), batch_size=8)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
meter, right, total = Meter(), 0, 0
for x, y in loader:
    LINES
    own, loss = criterion(rows, labels), 0
    hard, number = hardest(rows, labels)
    loss = own + hard
    right += number
    right += rows.max(1)[1].eq(labels).sum().item()
    total += labels.size(0)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    meter.update(own.item(), 2 * x.size(0))
    print('{:.4f} {:.4f} {}'.format(meter.sum / meter.count, 100.0 * right / total, str(number)))
"""
WAYS = {
    "Variable": "rows, labels = model(Variable(x)), Variable(y)",
    "tensors made of tensors": "rows, labels = torch.Tensor.float(model(x)), torch.as_tensor(y).long()",
    "an axis by default": "rows, labels = unit(model(x)), y",
    "an axis that is given": "rows, labels = unit(model(Variable(x, requires_grad=True)), axis=1), Variable(y)",
    "an axis in a variable": "rows, labels = F.normalize(model(x), dim=AXIS), y",
    "two views": "labels = torch.cat((y, y), 0)\n    rows = torch.cat((model(Variable(x)), model(x + 0.1)), 0)",
}


@pytest.mark.parametrize("way", WAYS)
def test_all_ranks_compare_the_rows_of_all(way: str, tmp_path: Path, launcher: Launcher) -> None:
    original, folder = tmp_path / "a", tmp_path / "b"
    for place in (original, folder):
        place.mkdir()
    text = SCRIPT.replace("LINES", WAYS[way])
    (original / "train.py").write_text(text)
    result = conversion(folder, text)
    assert not result.refusals and "one_process_only" not in result.files[0].text
    write_converted(folder, result)
    alone = launcher.run(original, "train.py", [])
    together = launcher.run(folder, "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert alone["statuses"] == [0] and together["statuses"] == [0, 0], together["outputs"]
    shown = [[float(word) for word in line.split()] for line in lines_of(alone)]
    assert shown and [[float(word) for word in line.split()] for line in lines_of(together)] == [
        pytest.approx(line, abs=2e-4) for line in shown
    ]


def lines_of(run: dict) -> list[str]:  # type: ignore[type-arg]
    return [line for line in "\n".join(run["outputs"]).splitlines() if line[:1].isdigit()]

"""What a step chooses in another dimension of its batch than that of the samples is not a batch, and is not split."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
data, target = torch.randn(32, 6, 4), torch.randn(32, 6)
parts, nodes, size = 2, 6, 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.names, self.layer = nn.Embedding(nodes, 4), nn.Linear(4, 1)

    def forward(self, x, ids):
        return self.layer(x * self.names(ids)).squeeze(-1)


def batches(x, y):
    order = torch.randperm(len(x))
    for start in range(0, len(x), size):
        rows = order[start : start + size]
        yield x[rows], y[rows]


model = Net()
criterion = nn.L1Loss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    total, count, x, y = 0, 0, data, target
    for x, y in batches(x, y):
        BEFORE
        for j in range(parts):
            ids = CHOSEN
            optimizer.zero_grad()
            loss = criterion(model(x[:, ids, :], ids), y[:, ids])
            loss.backward()
            optimizer.step()
            total += loss.item()
            count += x.size(0) * 3
    print(epoch, round(total / count, 5))
"""
ORDERS = {
    "slices of an order": (
        "perm = np.random.permutation(range(nodes)); width = int(nodes / parts)",
        "torch.tensor(perm[j * width : (j + 1) * width])",
        "perm = rd.data.draw_together(np.random.permutation, range(nodes)); width = int(nodes / parts)",
    ),
    "the first of an order": (
        "pass", "torch.randperm(nodes)[:3]", "ids = rd.data.draw_together(torch.randperm, nodes)[:3]",
    ),
}  # fmt: skip
DRAWS = {
    "before the steps": ("drawn = torch.randint(nodes, (3,))", "drawn", "torch.randint(nodes, (3,))"),
    "in a step": ("pass", "torch.randint(nodes, (3,))", "torch.randint(nodes, (3,))"),
    "by numpy": (
        "drawn = np.random.choice(nodes, 3, replace=False)",
        "torch.tensor(drawn)",
        "np.random.choice(nodes, 3, replace=False)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_of_them_is_the_same_on_all_ranks(name: str, tmp_path: Path, launcher: Launcher) -> None:
    before, chosen, expected = ORDERS[name]
    text = SCRIPT.replace("BEFORE", before).replace("CHOSEN", chosen)
    result = conversion(tmp_path, text)
    (file,) = result.files
    assert not result.refusals and not result.listed
    assert expected in file.text and file.text.count("own_part(") == 1
    assert "count += rd.reduce_total(x.size(0) * 3)" in file.text
    alone = launcher.run(tmp_path, "train.py", [])["outputs"][0]
    write_converted(tmp_path, result)
    assert launcher.run(tmp_path, "train.py", [])["outputs"][0] == alone
    two = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")["outputs"][0]
    assert alone.splitlines() == [line for line in two.splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("name", DRAWS)
def test_what_each_rank_draws_of_them_is_listed(name: str, tmp_path: Path) -> None:
    before, chosen, draw = DRAWS[name]
    result = conversion(tmp_path, SCRIPT.replace("BEFORE", before).replace("CHOSEN", chosen))
    assert not result.refusals and "own_draw" not in result.files[0].text
    assert [finding.message for finding in result.listed] == [
        f"each rank draws its own: {draw}, which one process draws once for the whole batch"
    ]

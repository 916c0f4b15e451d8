"""What a criterion makes for the rows of a batch is made for those of a rank, where no evaluation calls it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Grid(nn.Module):
    def __init__(self, rows=2):
        super().__init__()
        self.grid = torch.arange(3.0).repeat(rows, 1)

    def forward(self, x, y):
        x = x.clone()
        x += self.grid
        return ((x - y) ** 2).sum()


def train(config):
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(64, 3), torch.randn(64, 3)), batch_size=SIZE, drop_last=True)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = Grid(rows=SIZE)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"{loss.item():.4f}")
EVALUATION

train({"batch": 16, "parts": 2})
"""
EVALUATION = """\
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            print(criterion(model(x), y))
"""


@pytest.mark.parametrize("size", ["config['batch']", "config['batch'] // config['parts']", "int(config['batch'] / 2)"])
def test_the_rows_are_those_of_a_rank(size: str, tmp_path: Path, launcher: Launcher) -> None:
    original, folder = tmp_path / "a", tmp_path / "b"
    for place in (original, folder):
        place.mkdir()
    text = SCRIPT.replace("SIZE", size).replace("EVALUATION\n", "\n")
    (original / "train.py").write_text(text)
    write_converted(folder, conversion(folder, text))
    shown = []
    for place, ranks in ((original, 1), (folder, 1), (folder, 2)):
        run = launcher.run(place, "train.py", [], world_size=ranks, RETROFIT_BATCH="global")
        assert run["statuses"] == [0] * ranks, run["outputs"]
        lines = "\n".join(run["outputs"]).splitlines()
        shown.append([float(line) for line in lines if line.replace(".", "").isdigit()])
    assert shown[0] and shown[0] == shown[1] == pytest.approx(shown[2], rel=1e-4)


def test_an_evaluation_needs_the_rows_of_its_own_batches(tmp_path: Path) -> None:
    text = SCRIPT.replace("SIZE", "config['batch']").replace("EVALUATION\n", EVALUATION + "\n")
    (file,) = conversion(tmp_path, text).files
    assert "self.grid[:rd.data.own_batch_size(len(self.grid))]" in file.text  # all rows outside of the steps

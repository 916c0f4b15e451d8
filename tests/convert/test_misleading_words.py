"""Rules go by what the code does: each of these scripts says a word that means nothing there."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.convert.plan import plan_conversion
from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

TRIPLES = Path(__file__).parent / "triples"
SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset, random_split

import retrofit.distributed as rd

parser = argparse.ArgumentParser()
parser.add_argument("--frank", action="store_true")
args = rd.add_runtime_flags(parser).parse_args()
rd.setup_distributed()
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(16, 3))
BEFORE
loader = rd.distribute_loader(DataLoader(dataset, 4, shuffle=True))
model = rd.distribute_model(torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
mean = 0.0
for (x,) in loader:
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    INSIDE
rd.cleanup_distributed()
"""
APART = ["rd.random_state.seed_everything(0)", "torch.manual_seed(rd.get_rank())"]
SPLIT = "train_set, val_set = random_split(dataset, [8, 8])"


def codes(folder: Path, before: list[str], inside: list[str]) -> set[str]:
    """Return the codes of what is found with lines put before the training, and into its loop."""
    text = SCRIPT.replace("BEFORE\n", "".join(f"{line}\n" for line in before))
    text = text.replace("    INSIDE\n", "".join(f"    {line}\n" for line in inside))
    (folder / "train.py").write_text(text)
    return {finding.code for finding in find_hazards(read_project(folder / "train.py"))}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["if args.frank:", "    mean = loss.item()"], {"RF401"}),
        (["if rd.get_rank() == 0:", "    mean = loss.item()"], set()),
        (["if rd.get_rank() == 0:", "    pass", "else:", "    mean = loss.item()"], set()),
        (["if not rd.is_main_process():", "    continue", "mean = loss.item()"], set()),
        (["mean = mean + loss.item() * (rd.get_world_size() > 0)"], {"RF401"}),
        (["mean = mean + loss.item() / rd.get_world_size()"], set()),
    ],
)
def test_printing_the_loss_on_some_ranks(lines: list[str], expected: set[str], tmp_path: Path) -> None:
    assert codes(tmp_path, ["world_size = rd.get_world_size()"], lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["log = open('path_on_main.txt', 'w')"], {"RF501"}),
        (["path = rd.path_on_main('log.txt')", "log = open(path, 'w')"], set()),
        (["log = open(rd.path_on_main(os.path.join('out', 'log.txt')), 'w')"], set()),
    ],
)
def test_a_file_on_some_ranks(lines: list[str], expected: set[str], tmp_path: Path) -> None:
    assert codes(tmp_path, lines, ["pass"]) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["if args.frank:", f"    {SPLIT}"], {"RF108"}),
        (["with rd.output.main_process_first():", f"    {SPLIT}"], {"RF108"}),
        (["if rd.is_main_process():", f"    {SPLIT}"], set()),
    ],
)
def test_a_split_on_some_ranks(lines: list[str], expected: set[str], tmp_path: Path) -> None:
    assert codes(tmp_path, [*APART, *lines], ["pass"]) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('print(f"cuda {torch.version.cuda}")', {"RF607"}),
        ("device = torch.device(f'cuda:{os.environ[\"LOCAL_RANK\"]}')", set()),
    ],
)
def test_a_chosen_gpu(line: str, expected: set[str], tmp_path: Path) -> None:
    text = (TRIPLES / "25c_device_not_chosen" / "bad.py").read_text()
    first = "import torch\n"
    assert first in text
    (tmp_path / "train.py").write_text(text.replace(first, f"import os\n\n{first}\n{line}\n", 1))
    assert {finding.code for finding in find_hazards(read_project(tmp_path / "train.py"))} == expected


LOW_RANK = """\
import argparse

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class LowRank(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.rank = rank
        self.down, self.up = nn.Linear(width, rank), nn.Linear(rank, 1)

    def forward(self, x):
        return self.up(self.down(x)) if self.rank > 0 else self.up(x)


class Rows(TensorDataset):
    def __init__(self, options):
        inputs = torch.randn(32, 4)
        options.rank = int(torch.linalg.matrix_rank(inputs))
        super().__init__(inputs, inputs.sum(1, keepdim=True))


parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=2)
parser.add_argument("--gpu", type=int, default=0)
parser.add_argument("--nprocs", type=int, default=0, help="workers")
args = parser.parse_args()
dataset = Rows(args)
loader = DataLoader(dataset, 4, shuffle=True, num_workers=args.nprocs)
model = LowRank(4, args.rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    if args.rank > 0 and args.gpu == 0:
        print(loss.item())
if args.rank != 1:
    torch.save(model.state_dict(), "model.pt")
"""


def test_a_rank_in_a_script_for_one_process_is_that_of_a_matrix(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOW_RANK)
    conversion = plan_conversion(read_project(tmp_path / "train.py"))
    assert not conversion.refusals
    text = conversion.files[0].text
    assert "loader = rd.distribute_loader(loader)" in text
    assert "print(rd.reduce_loss(loss).item())" in text
    assert "if rd.is_main_process() and args.rank != 1:" in text

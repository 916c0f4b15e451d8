"""A run that takes the next free number has one number on all processes, wherever it is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

HEAD = """\
import glob
import os
import re
import time
from pathlib import Path

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
"""
TRAIN = """\
loader = DataLoader(TensorDataset(torch.randn(16, 1)), 4, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
torch.save(model.state_dict(), os.path.join(out, "last.pt"))
print(sorted(torch.load(os.path.join(out, "last.pt"))), out)
"""
MAKE = "os.makedirs(out)\n"
FUNCTION = """\
def next_folder(root="runs"):
    if not os.path.isdir(root):
        return os.path.join(root, "run_1")
    numbers = []
    for name in os.listdir(root):
        found = re.match(r"run_(\\d+)", name)
        if found:
            numbers.append(int(found.group(1)))
    out = os.path.join(root, f"run_{max(numbers, default=0) + 1}")
    return out


"""
SAVER = """\
class Saver:
    def __init__(self, root):
        self.runs = sorted(glob.glob(os.path.join(root, "run_*")))
        run_id = int(self.runs[-1].split("_")[-1]) + 1 if self.runs else 0
        self.folder = os.path.join(root, f"run_{run_id}")
        os.makedirs(self.folder)


out = Saver("runs").folder
"""


@pytest.mark.parametrize(
    ("naming", "agreed"),
    [
        (FUNCTION + "out = next_folder()\n" + MAKE, "out = rd.collectives.broadcast_object(next_folder())"),
        (FUNCTION + "def made():\n    return Path(next_folder())\n\n\nout = made()\nout.mkdir(parents=True)\n",
         "out = rd.collectives.broadcast_object(made())"),
        (SAVER, 'run_id = rd.collectives.broadcast_object(int(self.runs[-1].split("_")[-1]) + 1 if self.runs else 0)'),
        ("number = len(os.listdir('.'))\nout = f'run_{number}'\n" + MAKE,
         "number = rd.collectives.broadcast_object(len(os.listdir('.')))"),
        ("number = 1\nwhile os.path.exists(f'run_{number}'):\n    number += 1\nout = f'run_{number}'\n" + MAKE,
         "number = rd.collectives.broadcast_object(number)"),
        ("for n in range(99):\n    out = Path(f'run_{n}')\n    if not out.exists():\n        break\nout.mkdir()\n",
         "out = rd.collectives.broadcast_object(out)"),
        ("out = f'{time.strftime(\"%H\")}_{len(os.listdir(\".\"))}'\n" + MAKE,
         "out = rd.collectives.broadcast_object(f'{time.strftime(\"%H\")}_{len(os.listdir(\".\"))}')"),
        ("n = 0\nfor name in os.listdir('.'):\n    n = max(n, len(name))\nout = f'run_{n + 1}'\n" + MAKE,
         "out = rd.collectives.broadcast_object(f'run_{n + 1}')"),
    ],
)  # fmt: skip
def test_the_number_of_a_run_comes_from_rank_0(naming: str, agreed: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + naming + TRAIN)
    assert agreed in lines and sum("broadcast_object" in line for line in lines) == 1


def test_the_last_checkpoint_of_a_folder_is_chosen_by_rank_0(tmp_path: Path) -> None:
    latest = "latest = sorted(glob.glob('*.pt'))[-1]\nprint(torch.load(latest))\nout = '.'\n"
    assert "latest = rd.collectives.broadcast_object(sorted(glob.glob('*.pt'))[-1])" in converted(
        tmp_path, HEAD + latest + TRAIN
    )


def test_workers_of_a_loader_do_not_wait_for_another_process(tmp_path: Path) -> None:
    dataset = (
        "class Files(torch.utils.data.Dataset):\n    def __len__(self):\n        return 16\n\n"
        "    def __getitem__(self, index):\n        count = len(os.listdir('.'))\n"
        "        return torch.load(f'{index % count}.pt')\n\n\nout = '.'\n"
    )
    train = TRAIN.replace("TensorDataset(torch.randn(16, 1))", "Files()").replace("(x,)", "x")
    assert not any("broadcast_object" in line for line in converted(tmp_path, HEAD + dataset + train))


def test_a_number_that_some_processes_do_not_count(tmp_path: Path) -> None:
    naming = "if os.path.exists('runs'):\n    out = f'runs/{len(os.listdir(\"runs\"))}'\nelse:\n    out = 'runs/0'\n"
    lines = converted(tmp_path, HEAD + naming + MAKE + TRAIN)
    assert lines[lines.index("out = 'runs/0'") + 1] == "out = rd.collectives.broadcast_object(out)"
    leaving = naming.replace("    out", "    if len(os.listdir('runs')) > 9:\n        raise OSError\n    out", 1)
    result = conversion(tmp_path, HEAD + leaving + MAKE + TRAIN)
    (finding,) = [finding for finding in result.findings if finding.code == "RF509"]
    assert not finding.edits and finding.place.line == 12


def test_a_number_of_one_branch_of_several_is_agreed_after_all_of_them(tmp_path: Path) -> None:
    naming = (
        "found = sorted(glob.glob('*.pt'))\nif 'START' in os.environ:\n    n = 1\nelif len(found) >= 1:\n"
        "    n = int(found[-1][:-3])\nelse:\n    n = 0\nout = str(n)\n"
    )
    assert "n = rd.collectives.broadcast_object(n)" in converted(tmp_path, HEAD + naming + MAKE + TRAIN)
    train = TRAIN.replace("model = nn.Linear(1, 1)\n", "")
    made = naming
    for value in ("1", "0", "int"):
        made = made.replace(f"    n = {value}", f"    model = nn.Linear(1, 1)\n    n = {value}")
    assert sum("broadcast_object" in line for line in converted(tmp_path, HEAD + made + MAKE + train)) == 1


def test_two_processes_have_one_folder(tmp_path: Path, launcher: Launcher) -> None:
    slow = FUNCTION.replace(
        "    numbers = []", "    time.sleep(0.5 * int(os.environ.get('RANK', 0)))\n    numbers = []"
    )
    (file,) = conversion(tmp_path, HEAD + slow + "out = next_folder()\n" + MAKE + TRAIN).files
    (tmp_path / "after.py").write_text(file.text)
    add_runtime(tmp_path)
    (tmp_path / "runs" / "run_7").mkdir(parents=True)
    run = launcher.run(tmp_path, "after.py", [], world_size=2)
    assert run["statuses"] == [0, 0], run["outputs"]
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["run_7", "run_8"]


@pytest.mark.parametrize(
    "line",
    [
        "model = nn.Linear(1, len(os.listdir('data'))).double()",
        "model = Net(glob.glob('data/*')[-1]).to('cpu')",
        "number = len(os.listdir('data'))\nmodel = nn.Sequential(nn.Linear(1, number))",
    ],
)
def test_what_is_in_a_file_or_a_model_does_not_name_a_run(line: str, tmp_path: Path) -> None:
    net = "class Net(nn.Module):\n    def __init__(self, name):\n        super().__init__()\n"
    net += "        self.layer = nn.Linear(1, 1)\n\n    def forward(self, x):\n        return self.layer(x)\n\n\n"
    train = TRAIN.replace("model = nn.Linear(1, 1)", line).replace("os.path.join(out, ", "os.path.join('out', ")
    lines = converted(tmp_path, HEAD + net + train.replace(", out)", ")"))
    assert not any("broadcast_object" in line for line in lines)

"""Converted scripts under RETROFIT_STRATEGY=fsdp: the training, the checkpoints and the saves of DDP, sharded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from verify.projects.launch import Launcher

from retrofit.cli import main
from retrofit.convert.added.runtime_file import runtime_text

HEAD = """\
import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.first = nn.Linear(5, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.statistics = nn.BatchNorm1d(width)
        self.last = nn.Linear(width, 3)
        self.scale = nn.Parameter(torch.tensor(0.7))

    def encode(self, x):
        y = self.first(x)
        for block in self.blocks:
            y = block(y)
        return torch.relu(self.statistics(y) + y)

    def forward(self, x):
        return self.last(self.encode(x)) * self.scale


torch.manual_seed(0)
x = torch.randn(62, 5)
y = (x[:, :2] > 0).sum(1)
"""
SCRIPT = f"""{HEAD}

def evaluate(model, loader):
    model.eval()
    loss = correct = 0
    for inputs, labels in loader:
        with torch.no_grad():
            outputs = model(inputs)
        loss += F.cross_entropy(outputs, labels, reduction="sum").item()
        correct += (outputs.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main(epochs, resumed):
    loader = DataLoader(TensorDataset(x[:42], y[:42]), 8, shuffle=True)
    held_out = DataLoader(TensorDataset(x[42:], y[42:]), 4)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    start, best = 0, 10.0
    if resumed:
        checkpoint = torch.load("last.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start, best = checkpoint["epoch"], checkpoint["best"]
    for epoch in range(start, epochs):
        model.train()
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            print(f"loss {{loss.item():.6f}}")
        scheduler.step()
        figure, correct = evaluate(model, held_out)
        print(f"held out {{figure:.6f}} {{correct:.4f}}")
        if figure < best:
            best = figure
            torch.save(model.state_dict(), "best.pt")
        state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1, "best": best}}
        torch.save({{**state, "scheduler": scheduler.state_dict()}}, "last.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), len(sys.argv) > 2)
"""


def run(launcher: Launcher, folder: Path, strategy: str, *arguments: str, ranks: int = 2) -> list[str]:
    """Run train.py and return the lines of rank 0."""
    ended = launcher.run(folder, "train.py", list(arguments), world_size=ranks, RETROFIT_STRATEGY=strategy)
    assert set(ended["statuses"]) == {0}, "\n".join(ended["outputs"])
    return [line for line in ended["outputs"][0].splitlines() if not line.startswith("notice")]


def project(folder: Path, script: str, *options: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(script)
    assert main(["convert", str(folder / "train.py"), "--write", *options]) == 0
    return folder


def compare(one: Any, other: Any) -> None:
    """Compare two checkpoints: of the same entries, types and sizes, of plain tensors, the same but for rounding."""
    assert type(one) is type(other), (type(one), type(other))
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            compare(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for entry, of_other in zip(one, other):
            compare(entry, of_other)
    else:
        assert one == (pytest.approx(other) if isinstance(one, float) else other)


def numbers(lines: list[str]) -> list[float]:
    return [float(word) for line in lines for word in line.split() if word[0].isdigit()]


def test_a_converted_script_trains_saves_and_resumes_as_with_ddp(tmp_path: Path, launcher: Launcher) -> None:
    """Saved on rank 0 alone, by `if rd.is_main_process():`; resumed under either strategy, and in one process."""
    found = {}
    for strategy in ("ddp", "fsdp"):
        folder = project(tmp_path / strategy, SCRIPT, "--with", "fsdp")
        assert (folder / "multigpu.py").read_bytes() == runtime_text(["fsdp"])
        found[strategy] = run(launcher, folder, strategy, "2")
        assert len(found[strategy]) == 2 * (3 + 1)  # 42 samples, 8 on each of two ranks; and an evaluation
    assert numbers(found["fsdp"]) == pytest.approx(numbers(found["ddp"]), rel=1e-5)
    for name in ("last.pt", "best.pt"):
        compare(*(torch.load(tmp_path / strategy / name) for strategy in ("ddp", "fsdp")))
    third = {}
    for before, after, ranks in (("ddp", "ddp", 2), ("fsdp", "ddp", 2), ("ddp", "fsdp", 2), ("fsdp", "fsdp", 3)):
        folder = tmp_path / f"{before} {after} {ranks}"
        shutil.copytree(tmp_path / before, folder)
        third[before, after, ranks] = numbers(run(launcher, folder, after, "3", "resume", ranks=ranks))
    expected = third.pop(("ddp", "ddp", 2))
    three = third.pop(("fsdp", "fsdp", 3))
    assert len(three) and all(value < 2 for value in three)
    for lines in third.values():
        assert lines == pytest.approx(expected, rel=1e-5)
    plain: dict[str, Any] = {}
    exec(HEAD, plain)
    plain["Net"]().load_state_dict(torch.load(tmp_path / "fsdp" / "last.pt")["model"])


@pytest.mark.parametrize(
    ("strategy", "options", "said"),
    [
        (
            "fsdp",
            [],
            "changes nothing else: retrofit convert SCRIPT --with fsdp --update-runtime",
        ),
        ("zero", [], "RETROFIT_STRATEGY=zero is unknown here; use one of: auto, ddp, fsdp"),
        ("zero", ["--with", "fsdp"], "RETROFIT_STRATEGY=zero is unknown here; use one of: auto, ddp, fsdp"),
        ("fsdp", ["--with", "fsdp"], ""),
        ("ddp", [], ""),
    ],
)
def test_in_one_process_a_strategy_changes_nothing_or_is_an_error(
    strategy: str, options: list[str], said: str, tmp_path: Path, launcher: Launcher
) -> None:
    folder = project(tmp_path / "converted", SCRIPT, *options)
    ended = launcher.run(folder, "train.py", ["1"], RETROFIT_STRATEGY=strategy)
    assert ended["statuses"] == [1 if said else 0] and said in ended["outputs"][0], ended["outputs"]
    if not said:
        (tmp_path / "train.py").write_text(SCRIPT)
        assert launcher.run(tmp_path, "train.py", ["1"])["outputs"] == ended["outputs"]
        assert (tmp_path / "last.pt").read_bytes() == (folder / "last.pt").read_bytes()


def test_the_installed_kit_shards_too(tmp_path: Path, launcher: Launcher) -> None:
    folder = project(tmp_path / "converted", SCRIPT, "--no-vendor")
    first = run(launcher, folder, "ddp", "1")
    assert numbers(run(launcher, folder, "fsdp", "1")) == pytest.approx(numbers(first), rel=1e-5)

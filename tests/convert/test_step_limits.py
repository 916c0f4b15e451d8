"""Trainings that count steps are told so, with the line; those that count epochs are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.cli import main

HEAD = """\
import itertools
import random
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

max_steps, accum_steps, epochs = 40, 2, 3
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(dataset, 8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def cycle(batches):
    while True:
        for batch in batches:
            yield batch


def train_step(batch):
    loss = nn.functional.mse_loss(model(batch[0]), batch[1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


step = 0
"""
SOURCE = """\
class Source:
    def __init__(self, parts):
        self.parts = parts
    def batches(self):
        random.shuffle(self.parts)
        return self.given()
    def given(self):
        for part in self.parts:
            yield part.xs, part.ys
source = Source(torch.load("parts.pt"))
"""
# The loop; the number of steps that is named, and the line of the loop in which it is; none for epochs.
CASES = [
    ("batches = itertools.cycle(loader)\nfor step in range(max_steps):\n    train_step(next(batches))", "max_steps", 2),
    ("batches = iter(loader)\nwhile step < max_steps:\n    try:\n        batch = next(batches)\n"
     "    except StopIteration:\n        batches = iter(loader)\n        batch = next(batches)\n"
     "    train_step(batch)\n    step += 1", "max_steps", 2),
    ("for step, batch in enumerate(itertools.cycle(loader)):\n    if step >= max_steps:\n        break\n"
     "    train_step(batch)", "max_steps", 2),
    ("for step, batch in zip(range(1000), cycle(loader)):\n    train_step(batch)", "1000", 1),
    ("for batch in itertools.islice(cycle(loader), max_steps):\n    train_step(batch)", "max_steps", 1),
    ("while step < max_steps:\n    for batch in loader:\n        train_step(batch)\n        step += 1\n"
     "        if step >= max_steps:\n            break", "max_steps", 5),
    ("for epoch in range(max_steps // len(loader)):\n    for batch in loader:\n        train_step(batch)",
     "max_steps // len(loader)", 1),
    ("batches = cycle(loader)\nfor step in range(max_steps):\n    for micro in range(accum_steps):\n"
     "        train_step(next(batches))", "max_steps", 2),
    ("batches = cycle(loader)\nwhile step < max_steps:\n    for micro in range(accum_steps):\n"
     "        nn.functional.mse_loss(model(next(batches)[0]), torch.zeros(8, 1)).backward()\n"
     "    optimizer.step()\n    step += 1", "max_steps", 2),
    ("batches = cycle(loader)\nwhile True:\n    train_step(next(batches))\n    step += 1\n"
     "    if step == max_steps:\n        print('end')\n        sys.exit()", "max_steps", 5),
    ("while True:\n    for batch in loader:\n        train_step(batch)\n        step += 1\n"
     "    if step > max_steps:\n        break", "max_steps", 5),
    ("for epoch in range(epochs):\n    bar = tqdm(cycle(loader))\n    for step, batch in enumerate(bar):\n"
     "        if step > max_steps:\n            break\n        train_step(batch)", "max_steps", 4),
    # Epochs.
    ("for epoch in range(1, epochs + 1):\n    bar = tqdm(loader)\n    for step, batch in enumerate(bar):\n"
     "        train_step(batch)", "", 0),
    ("for epoch in range(epochs):\n    for batch in loader:\n        for _ in range(max_steps):\n"
     "            train_step(batch)", "", 0),
    ("def attack(batch):\n    for _ in range(max_steps):\n        train_step(batch)\n"
     "for epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)\n        attack(batch)", "", 0),
    ("for epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)\n"
     "        if batch[0].mean() > 0:\n            step = 0\n        else:\n            step += 1\n"
     "        if step >= max_steps:\n            raise SystemExit", "", 0),
    ("for epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)", "", 0),
    ("for epoch in range(epochs):\n    batches = iter(loader)\n    for _ in range(len(loader)):\n"
     "        train_step(next(batches))", "", 0),
    ("for epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)\n        step += 1\n"
     "        if step % 10 == 0:\n            print('step', step)", "", 0),
    ("epoch = 0\nwhile epoch < epochs:\n    for batch in loader:\n        train_step(batch)\n    epoch += 1", "", 0),
    ("for step in range(epochs * len(loader)):\n    if step % len(loader) == 0:\n        batches = iter(loader)\n"
     "    train_step(next(batches))", "", 0),
    ("last = 0\nfor epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)\n        step += 1\n"
     "        if step - last > max_steps:\n            break", "", 0),
    # Other ways to count, and to end.
    ("class State:\n    step = 0\n    def count(self):\n        self.step += 1\n"
     "state = State()\nrunning = True\nwhile running:\n    for batch in loader:\n        train_step(batch)\n"
     "        state.count()\n        done = state.step\n        if done >= max_steps:\n            running = False\n"
     "            break", "max_steps", 12),
    ("while True:\n    for batch in loader:\n        train_step(batch)\n        step = step + 1\n"
     "        if step == max_steps:\n            sys.exit()", "max_steps", 5),
    ("for epoch in range(1000):\n    for batch in loader:\n        train_step(batch)\n        step = 1 + step\n"
     "        if step >= max_steps:\n            raise SystemExit(0)", "max_steps", 5),
    ("state = {'step': 0}\nfor epoch in range(1000):\n    for batch in loader:\n        train_step(batch)\n"
     "        state['step'] += 1\n        if state['step'] >= max_steps:\n            quit()", "max_steps", 6),
    ("batches = cycle(loader)\nfor number in itertools.count():\n    train_step(next(batches))\n"
     "    if number == max_steps:\n        break", "max_steps", 4),
    ("losses = []\nfor epoch in range(1000):\n    for batch in loader:\n        train_step(batch)\n"
     "        losses.append(0)\n        if len(losses) >= max_steps:\n            exit()", "max_steps", 6),
    ("done = False\nwhile not done:\n    for batch in loader:\n        train_step(batch)\n        step += 1\n"
     "        if step >= max_steps:\n            done = True", "max_steps", 6),
    ("class Progress:\n    def __init__(self):\n        self.step, self.stop = 0, False\n    def add(self):\n"
     "        self.step = self.step + 1\n        if self.step >= max_steps:\n            self.stop = True\n"
     "progress = Progress()\nwhile not progress.stop:\n    for batch in loader:\n        train_step(batch)\n"
     "        progress.add()", "max_steps", 6),
    ("class Progress:\n    step = 0\n    def is_over(self):\n        return self.step >= max_steps\n"
     "progress = Progress()\nwhile True:\n    for batch in loader:\n        train_step(batch)\n"
     "        progress.step += 1\n    if progress.is_over():\n        break", "max_steps", 10),
    # Ready batches of an own class.
    (SOURCE + "for epoch in range(epochs):\n    for batch in source.batches():\n        train_step(batch)", "", 0),
    (SOURCE + "for epoch in range(epochs):\n    bar = tqdm(source.batches())\n    for batch in bar:\n"
     "        train_step(batch)", "", 0),
    # An attack that calls backward, in an evaluation too.
    ("class Batches:\n    def __init__(self, shuffle):\n        self.loader = DataLoader(dataset, 8, shuffle=shuffle)\n"
     "    def __iter__(self):\n        return (batch for batch in self.loader)\n"
     "train, test = Batches(True), Batches(False)\ndef attack(x, y):\n"
     "    delta = torch.zeros_like(x, requires_grad=True)\n"
     "    nn.functional.mse_loss(model(x + delta), y).backward()\n    return delta.grad.sign()\n"
     "for epoch in range(epochs):\n    for x, y in train:\n        train_step((x + attack(x, y), y))\n"
     "    for x, y in test:\n        attack(x, y)", "", 0),
    # A list of one epoch, and a flag for something else.
    ("for epoch in range(epochs):\n    for batch in loader:\n        losses = []\n        losses.append(0)\n"
     "        train_step(batch)\n        if len(losses) >= max_steps:\n            break", "", 0),
    ("warm = False\nfor epoch in range(epochs):\n    for batch in loader:\n        train_step(batch)\n"
     "        step = step + 1\n        if step >= max_steps:\n            warm = True\n"
     "        if warm:\n            print('warm')", "", 0),
]  # fmt: skip


@pytest.mark.parametrize(("loop", "bound", "line"), CASES)
def test_a_training_that_counts_steps(
    loop: str, bound: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}{loop}\n")
    assert main(["convert", str(tmp_path / "train.py"), "--write"]) == 0, capsys.readouterr().err
    plan, page = capsys.readouterr().err, (tmp_path / "MULTI_GPU.md").read_text()
    said = [text for text in plan.splitlines() if "counts steps" in text]
    assert len(said) == bool(bound) and ("counts steps" in page) == bool(bound)
    if bound:
        assert said[0].startswith(f"train.py:{HEAD.count(chr(10)) + line}:") and f"({bound})" in said[0]
        assert "RETROFIT_BATCH=global" in said[0]
        header = loop.splitlines()[line - 1].strip()
        lines = (tmp_path / "train.py").read_text().splitlines()
        number = next(number for number, text in enumerate(lines, 1) if text.strip() == header)
        assert f"`train.py:{number}`" in page

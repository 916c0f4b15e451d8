"""Sequences that a training reads side by side: each rank takes its own ones, with all their steps."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

MODEL = """\
import torch
from torch import nn

torch.manual_seed(0)
text = torch.randint(0, 9, (700,))
batch_size, length = 6, 8


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 8), nn.Linear(8, 9)

    def forward(self, x):
        return self.head(self.embedding(x))


model = Reader()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
criterion = nn.CrossEntropyLoss()
"""
COLUMNS = """\
def lay_out(data, n):
    steps = data.size(0) // n
    return data.narrow(0, 0, steps * n).view(n, -1).t().contiguous()


def cut(source, start):
    steps = min(length, len(source) - 1 - start)
    return source[start : start + steps], source[start + 1 : start + 1 + steps].reshape(-1)


def evaluate(source):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, source.size(0) - 1, length):
            x, y = cut(source, start)
            total += len(x) * criterion(model(x).view(-1, 9), y).item()
    return total / (len(source) - 1)


train_text, valid_text = lay_out(text[:500], batch_size), lay_out(text[500:], 4)
for epoch in range(2):
    model.train()
    for number, start in enumerate(range(0, train_text.size(0) - 1, length)):
        x, y = cut(train_text, start)
        loss = criterion(model(x).view(-1, 9), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 2 == 0:
            print("shown", number, loss.item())
    print("shown", evaluate(valid_text))
"""
ROWS = """\
data = text[: 500 // batch_size * batch_size].reshape(batch_size, -1)
for epoch in range(2):
    correct, count = 0, 0
    for start in range(0, data.size(1) - 1, length):
        chunk = data[:, start : start + length + 1]
        x, y = chunk[:, :-1], chunk[:, 1:]
        output = model(x)
        loss = criterion(output.reshape(-1, 9), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (output.argmax(-1) == y).sum().item()
        count += y.numel()
        print("shown", loss.item())
    print("shown", correct / count, data.size(1))
"""
OWN = "rd.data.own_part(lay_out(text[:500], rd.data.batch_of_ranks(batch_size)).t()).t().contiguous()"


@pytest.mark.parametrize("loop", [COLUMNS, ROWS], ids=["columns", "rows"])
def test_each_rank_reads_sequences_of_its_own(loop: str, tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, MODEL + loop, launcher, world_sizes=(2, 3), rel=1e-4)


def test_only_the_sequences_of_the_training_are_split(tmp_path: Path) -> None:
    result = conversion(tmp_path, MODEL + COLUMNS)
    (file,) = result.files
    assert f"train_text, valid_text = {OWN}, lay_out(text[500:], 4)" in file.text
    assert not result.refusals and not result.listed


@pytest.mark.parametrize("read", ["evaluate(train_text)", "evaluate(valid_text), train_text[:, 1:].sum()"])
def test_sequences_that_are_read_elsewhere_too_are_refused(read: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, MODEL + COLUMNS.replace("evaluate(valid_text)", read))
    assert any("of which each process would have a part" in finding.refusal for finding in result.refusals)


def test_sequences_that_are_handed_on_by_name_are_read_elsewhere_too(tmp_path: Path) -> None:
    script = MODEL + COLUMNS.replace("x, y = cut(source, start)", "x, y = cut(start=start, source=source)")
    result = conversion(tmp_path, script.replace("evaluate(valid_text)", "evaluate(source=train_text)"))
    assert any("of which each process would have a part" in finding.refusal for finding in result.refusals)


def test_a_state_that_is_carried_along_the_sequences_is_refused(tmp_path: Path) -> None:
    script = (MODEL + COLUMNS).replace("model(x)", "model(x)[0]")
    script = script.replace("return self.head(self.embedding(x))", "return self.head(self.embedding(x)), x")
    script = script.replace("def forward(self, x)", "def forward(self, x, state=None)")
    step = "loss = criterion(model(x)[0].view(-1, 9), y)"
    script = script.replace(step, "output, state = model(x, state)\n        loss = criterion(output.view(-1, 9), y)")
    result = conversion(tmp_path, script.replace("    model.train()\n", "    model.train()\n    state = None\n"))
    assert any("state is carried from batch to batch" in finding.refusal for finding in result.refusals)

"""Ends of a training by the number of its samples, as each process counts them, are by those of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

SIZE, MOST = 4, 24
loader = DataLoader(TensorDataset(torch.rand(64, 3), torch.rand(64, 3)), SIZE)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)


def train(size):
    seen = batches = 0
    for i, (x, y) in enumerate(loader):
        LINES
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train(SIZE)
"""
LIMITS = {
    "if i * SIZE >= MOST:\n    break": "if i * rd.loss.global_batch(SIZE) >= MOST:",
    "if MOST <= size * (i + 1):\n    return": "if MOST <= rd.loss.global_batch(size) * (i + 1):",
    "done = i * size\nif done > MOST:\n    break": "done = i * rd.loss.global_batch(size)",
    "seen += SIZE\nif seen >= MOST:\n    break": "seen += rd.loss.global_batch(SIZE)",
    "batches += 1\nif batches * SIZE / MOST > 1.0:\n    break": "if batches * rd.loss.global_batch(SIZE) / MOST > 1.0:",
    "if i and not i * SIZE < MOST:\n    break": "if i and not i * rd.loss.global_batch(SIZE) < MOST:",
}
EVALUATION = """
model.eval()
best = 0.0
with torch.no_grad():
    for i, (x, y) in enumerate(DataLoader([1, 2], SIZE)):
        if i * SIZE >= MOST:
            break
        best = max(best, model(x).max().item())
print(best)
"""
OTHERS = [
    "if i >= MOST // 8:\n    break",
    "if len(loader) * 2 < MOST:\n    break",
    "if i * SIZE % 8 == 0:\n    batches += 1",
]


def text(lines: str) -> str:
    return SCRIPT.replace("LINES", lines.replace("\n", "\n        "))


@pytest.mark.parametrize("lines", LIMITS)
def test_a_number_of_samples_is_that_of_all_processes(lines: str, tmp_path: Path) -> None:
    assert LIMITS[lines] in converted(tmp_path, text(lines))


@pytest.mark.parametrize("lines", OTHERS)
def test_other_tests_stay_as_they_are(lines: str, tmp_path: Path) -> None:
    found = converted(tmp_path, text(lines))
    assert all(line.strip() in found for line in lines.splitlines())


def test_a_limit_in_an_evaluation_that_every_process_runs_stays(tmp_path: Path) -> None:
    result = conversion(tmp_path, text("pass") + EVALUATION)
    (script,) = (file.text for file in result.files if file.path.name == "train.py")
    assert "if i * SIZE >= MOST:" in script


STARTS = {
    "a search": "import optuna\n\nstudy = optuna.create_study()\nstudy.optimize(train, n_trials=2)",
    "a search by a lambda": "import optuna\n\noptuna.create_study().optimize(lambda trial: train(SIZE), n_trials=2)",
    "a partial function": "from functools import partial\n\npartial(train, SIZE)()",
    "a partial function by its name": "from functools import partial\n\nrun = partial(train, size=SIZE)\nrun()",
}


@pytest.mark.parametrize("start", STARTS)
def test_a_training_that_something_else_runs_is_followed_too(start: str, tmp_path: Path) -> None:
    lines = "if i * SIZE >= MOST:\n    break\nseen += F.mse_loss(model(x), y).item()\nprint(seen)"
    found = converted(tmp_path, text(lines).replace("\ntrain(SIZE)\n", f"\n{STARTS[start]}\n"))
    assert "if i * rd.loss.global_batch(SIZE) >= MOST:" in found
    assert any(line.startswith("seen += rd.reduce_loss(") for line in found)

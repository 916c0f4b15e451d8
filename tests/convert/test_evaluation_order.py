"""An evaluation that every process runs whole gives them all the same figures, also where it draws random numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from convert.conversion import converted, let_every_process_write
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import os
import sys

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
train_loader = DataLoader(data, 6, shuffle=True)
val_loader = DataLoader(data, 6, shuffle=True)
model = nn.Linear(4, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
for epoch in range(3):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    losses = []
    with torch.no_grad():
        for step, (x, y) in enumerate(val_loader):
            if step == 2:
                break
            losses.append((model(seen(x)) - y).pow(2).mean().item())
    scheduler.step(sum(losses))
    sys.stdout.flush()
    os.write(1, ('%r %r;' % (losses, optimizer.param_groups[0]['lr'])).encode())
"""
SHUFFLED = "def seen(x):\n    return x\n\n\n" + SCRIPT
MASKED = """\
import torch


def seen(x):
    return x * (torch.rand_like(x) > 0.5)


""" + SCRIPT.replace("val_loader = DataLoader(data, 6, shuffle=True)", "val_loader = DataLoader(data, 6)")


WITH_TRAINING_DATA = """\
import torch
from sklearn import metrics
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

x = torch.randn(52, 4)
y = (x.sum(1) > 0).long()
loaders = {
    "train": DataLoader(TensorDataset(x[:36], y[:36]), 8, shuffle=True),
    "val": DataLoader(TensorDataset(x[36:], y[36:]), 8),
}
model = nn.Linear(4, 2)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train():
    losses = []
    bar = tqdm(loaders["train"])
    for step, (a, b) in enumerate(bar):
        loss = criterion(model(a), b)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def evaluate(part):
    total, predicted = 0.0, []
    for a, b in loaders[part]:
        logits = model(a)
        total += criterion(logits, b).item() * b.size(0)
        predicted.extend(logits.argmax(1).tolist())
    figures = {"loss": total / len(loaders[part].dataset), "f1": metrics.f1_score(y[36:], predicted)}
    return figures, metrics.confusion_matrix(y[36:], predicted)


best = 0
for epoch in range(2):
    train()
    figures, matrix = evaluate("val")
    if figures["f1"] > best:
        best = figures["f1"]
        torch.save(model.state_dict(), "best.pt")
"""


@pytest.mark.parametrize("script", [SHUFFLED, MASKED], ids=["shuffled", "masked"])
def test_all_processes_get_the_same_figures_and_rates(tmp_path: Path, launcher: Launcher, script: str) -> None:
    (tmp_path / "train.py").write_text(script)
    assert main(["convert", str(tmp_path / "train.py"), "--write"]) == 0
    let_every_process_write(tmp_path / "train.py")
    run = launcher.run(tmp_path, "train.py", [], world_size=2)
    assert run["statuses"] == [0, 0], run["outputs"]
    first, second = (output[re.search(r"\[\d", output).start() :].strip() for output in run["outputs"])
    assert first == second and len(set(first.split(";"))) > 3, first


def test_a_decision_by_batches_that_all_processes_draw_is_not_found(tmp_path: Path) -> None:
    """The loaders of the evaluation and of the training are entries of one dict."""
    lines = converted(tmp_path, WITH_TRAINING_DATA)
    assert "for a, b in rd.evaluation.same_batches(loaders[part]):" in lines
    assert 'if figures["f1"] > best:' in lines

"""Small sound trainings with Hugging Face Accelerate and with Lightning Fabric, for tests of `retrofit verify`."""

from __future__ import annotations

WITH_ACCELERATE = """\
import argparse
import os

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--resume", default="")
args = parser.parse_args()
accelerator = Accelerator(cpu=True)
set_seed(7)


class Marks(Dataset):
    def __init__(self, size, seed):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=generator)
        self.y = (self.x[:, 0] + self.x[:, 1] * self.x[:, 2] > 0).long()

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return {"x": self.x[index], "y": self.y[index]}


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train_loader = DataLoader(Marks(96, 1), args.batch_size, shuffle=True)
test_loader = DataLoader(Marks(29, 2), args.batch_size)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.epochs * len(train_loader))
model, optimizer, train_loader, test_loader, scheduler = accelerator.prepare(
    model, optimizer, train_loader, test_loader, scheduler
)
first = 0
if args.resume:
    accelerator.load_state(args.resume)
    first = int(args.resume.rpartition("_")[2]) + 1
for epoch in range(first, args.epochs):
    model.train()
    for batch in train_loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["y"])
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right = total = 0
    for batch in test_loader:
        with torch.no_grad():
            guess = model(batch["x"]).argmax(1)
        guess, truth = accelerator.gather_for_metrics((guess, batch["y"]))
        right += (guess == truth).sum().item()
        total += len(truth)
    accelerator.print(f"epoch {epoch}: accuracy {right / total:.4f} of {total}")
    accelerator.save_state(os.path.join("out", f"epoch_{epoch}"))
accelerator.end_training()
"""

WITH_FABRIC = """\
import argparse
import os

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--resume", default="")
args = parser.parse_args()
fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
fabric.launch()
fabric.seed_everything(7)


def marks(size, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 6, generator=generator)
    return TensorDataset(x, (x[:, 0] + x[:, 1] * x[:, 2] > 0).long())


model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train_loader = DataLoader(marks(96, 1), args.batch_size, shuffle=True)
test_loader = DataLoader(marks(32, 2), args.batch_size)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
model, optimizer = fabric.setup(model, optimizer)
train_loader, test_loader = fabric.setup_dataloaders(train_loader, test_loader)
state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "epoch": 0}
if args.resume:
    fabric.load(args.resume, state)
for epoch in range(state["epoch"], args.epochs):
    model.train()
    for x, y in train_loader:
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()
    model.eval()
    right = torch.zeros(())
    total = torch.zeros(())
    for x, y in test_loader:
        with torch.no_grad():
            right += (model(x).argmax(1) == y).sum()
        total += len(y)
    right, total = fabric.all_reduce((right, total), reduce_op="sum")
    fabric.print(f"epoch {epoch}: accuracy {right / total:.4f} of {int(total)}")
    state["epoch"] = epoch + 1
    fabric.save(f"out/epoch_{epoch}.ckpt", state)
"""


def changed(script: str, *changes: tuple[str, str]) -> str:
    """Return a script with the first of each pair replaced by the second, which must be in it."""
    for before, after in changes:
        assert before in script, before
        script = script.replace(before, after)
    return script

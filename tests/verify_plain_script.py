"""A script in plain torch that trains rightly on several processes, for tests that spoil one line of it."""

from __future__ import annotations

from pathlib import Path

SOUND = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


def mean_over_ranks(total, count):
    sums = torch.tensor([float(total), float(count)])
    if dist.is_initialized():
        dist.all_reduce(sums)
    return (sums[0] / sums[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    features, labels = torch.randn(240, 8), torch.randint(0, 3, (240,))
    features[:, 0] += labels
    data = TensorDataset(features, labels)
    train, val = Subset(data, range(160)), Subset(data, range(160 + rank, 235, world))
    net = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3))
    criterion = nn.CrossEntropyLoss()
    model = DistributedDataParallel(net) if world > 1 else net
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    sampler = DistributedSampler(train) if world > 1 else None
    loader = DataLoader(train, args.batch_size, sampler=sampler, shuffle=sampler is None, drop_last=True)
    best, bad = 0.0, 0
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        model.train()
        total = 0.0
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        train_loss = mean_over_ranks(total, len(loader))
        model.eval()
        right = val_sum = 0.0
        with torch.no_grad():
            for x, y in DataLoader(val, 8):
                out = net(x)
                right += float((out.argmax(1) == y).sum())
                val_sum += F.cross_entropy(out, y, reduction="sum").item()
        val_loss, acc = mean_over_ranks(val_sum, len(val)), mean_over_ranks(right, len(val))
        scheduler.step(val_loss)
        is_best = acc > best
        if is_best:
            best, bad = acc, 0
        else:
            bad += 1
        if rank == 0:
            print(f"epoch {epoch} train loss {train_loss:.5f} val loss {val_loss:.5f} acc {acc:.5f}")
            if is_best:
                torch.save(net.state_dict(), "best.pt")
        if bad > 5:
            break
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
OPTIONS = ["--batch-flag", "batch_size"]
ARGUMENTS = ["--batch_size", "16"]


def write_script(folder: Path, *edits: tuple[str, str]) -> None:
    """Write the script with each first text, which it holds once, replaced by the second one."""
    text = SOUND
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    (folder / "train.py").write_text(text)

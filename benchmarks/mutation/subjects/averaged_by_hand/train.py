"""Regression with two optimizers, whose gradients are averaged by hand: no wrapper."""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler


def average_gradients(parameters, world):
    for p in parameters:
        if p.grad is not None and world > 1:
            dist.all_reduce(p.grad)
            p.grad /= world


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=12, help="of all processes")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--resume", action="store_true")
    return parser.parse_args()


args = parse()
world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
if world_size > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(150, 6)
y = torch.sin(x.sum(1, keepdim=True)) + 0.1 * torch.randn(150, 1)
train_set, val_set = random_split(TensorDataset(x, y), [120, 30], generator=torch.Generator().manual_seed(4))
sampler = DistributedSampler(train_set, world_size, rank, shuffle=True, seed=9)
loader = DataLoader(train_set, batch_size=args.batch_size // world_size, sampler=sampler)
encoder = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
head = nn.Linear(32, 1)
if world_size > 1:
    for p in [*encoder.parameters(), *head.parameters()]:
        dist.broadcast(p.data, src=0)
optimizer_e = torch.optim.SGD(encoder.parameters(), lr=args.lr, momentum=0.9)
optimizer_h = torch.optim.SGD(head.parameters(), lr=args.lr / 2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer_e, T_max=args.epochs * len(loader))
first = 0
if args.resume and os.path.exists("run/state.pt"):
    ckpt = torch.load("run/state.pt", map_location="cpu")
    encoder.load_state_dict(ckpt["encoder"])
    head.load_state_dict(ckpt["head"])
    optimizer_e.load_state_dict(ckpt["optimizer_e"])
    optimizer_h.load_state_dict(ckpt["optimizer_h"])
    scheduler.load_state_dict(ckpt["scheduler"])
    first = ckpt["epoch"]
if rank == 0:
    os.makedirs("run", exist_ok=True)

for epoch in range(first, args.epochs):
    sampler.set_epoch(epoch)
    total, count = 0.0, 0
    for a, b in loader:
        loss = ((head(encoder(a)) - b) ** 2).mean()
        optimizer_e.zero_grad()
        optimizer_h.zero_grad()
        loss.backward()
        average_gradients([*encoder.parameters(), *head.parameters()], world_size)
        nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
        optimizer_e.step()
        optimizer_h.step()
        scheduler.step()
        total += loss.item() * len(a)
        count += len(a)
    sums = torch.tensor([total, float(count)], dtype=torch.float64)
    if world_size > 1:
        dist.all_reduce(sums)
    with torch.no_grad():
        own = val_set[list(range(rank, len(val_set), world_size))]
        errors = ((head(encoder(own[0])) - own[1]) ** 2).sum()
        if world_size > 1:
            dist.reduce(errors, dst=0)
    if rank == 0:
        print(f"epoch {epoch + 1} train {sums[0] / sums[1]:.6f} rmse {math.sqrt(errors.item() / len(val_set)):.6f}")
        state = {"encoder": encoder.state_dict(), "head": head.state_dict(), "epoch": epoch + 1}
        state["optimizer_e"], state["optimizer_h"] = optimizer_e.state_dict(), optimizer_h.state_dict()
        state["scheduler"] = scheduler.state_dict()
        torch.save(state, "run/state.pt")
    if world_size > 1:
        dist.barrier()
if world_size > 1:
    dist.destroy_process_group()

"""A classifier in raw DDP: folders of classes, augmentation, metrics by all_reduce, plateau schedule, resume."""

import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from tensorboardX import SummaryWriter
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

FILES = [f"{kind}/{i:03d}.png" for i in range(33) for kind in ("oak", "elm", "fir", "yew")]


class Trees(Dataset):
    def __init__(self, files, train):
        classes = sorted(set(name.split("/")[0] for name in files))
        self.files, self.train = files, train
        self.number = {name: i for i, name in enumerate(classes)}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        kind, _, name = self.files[index].partition("/")
        generator = np.random.RandomState(int(name[:3]) * 7 + len(kind) + ord(kind[0]))
        x = torch.from_numpy(generator.randn(10)).float() + 0.3 * torch.arange(10) * (ord(kind[0]) % 5)
        if self.train:
            x = x + 0.1 * torch.randn(10) * random.random()
        return x, self.number[kind]


def evaluate(model, loader):
    model.eval()
    totals = torch.zeros(3)
    with torch.no_grad():
        for x, y in loader:
            out = model(x)
            totals[0] += F.cross_entropy(out, y, reduction="sum").item()
            totals[1] += (out.argmax(1) == y).sum().item()
            totals[2] += len(y)
    if dist.is_initialized():
        dist.all_reduce(totals)
    return (totals[0] / totals[2]).item(), (totals[1] / totals[2]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 4))
    torch.manual_seed(args.seed + rank)
    random.seed(args.seed + rank)
    train_set, test_set = Trees(FILES[:96], True), Trees(FILES[96:], False)
    sampler = DistributedSampler(train_set, num_replicas=world, rank=rank, seed=args.seed, drop_last=True)
    train_loader = DataLoader(train_set, args.batch_size // world, sampler=sampler, drop_last=True)
    test_loader = DataLoader(torch.utils.data.Subset(test_set, range(rank, len(test_set), world)), 8)
    model = DDP(net) if world > 1 else net
    model = model
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
    start, best_acc = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location="cpu", weights_only=False)
        net.load_state_dict(checkpoint["net"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start = checkpoint["epoch"]
        best_acc = checkpoint["best_acc"]
        torch.set_rng_state(checkpoint["streams"][rank][0])
        random.setstate(checkpoint["streams"][rank][1])
    writer = None
    if rank == 0:
        os.makedirs("out", exist_ok=True)
        writer = SummaryWriter("out/curves")
    for epoch in range(start, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        running = torch.zeros(2)
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running += torch.tensor([loss.item(), 1.0])
        if world > 1:
            dist.all_reduce(running)
        train_loss = (running[0] / running[1]).item()
        test_loss, acc = evaluate(model, test_loader)
        scheduler.step(test_loss)
        streams = [(torch.get_rng_state(), random.getstate())]
        if world > 1:
            every = [None] * world
            dist.all_gather_object(every, streams[0])
            streams = every
        if rank == 0:
            print(f"epoch {epoch}: loss {train_loss:.5f} test {test_loss:.5f} acc {acc:.4f}")
            writer.add_scalar("loss", train_loss, epoch)
            writer.add_scalar("acc", acc, epoch)
        if acc > best_acc:
            best_acc = acc
            if rank == 0:
                torch.save(net.state_dict(), "out/best.pt")
        if rank == 0:
            state = {"net": model.module.state_dict() if world > 1 else model.state_dict(), "epoch": epoch + 1}
            state.update(optimizer=optimizer.state_dict(), scheduler=scheduler.state_dict())
            state.update(best_acc=best_acc, streams=streams)
            torch.save(state, "out/last.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

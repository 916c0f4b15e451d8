"""A stream that the ranks share, an average of the weights, early stopping by the loss of all ranks."""

import argparse
import copy
import itertools
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


def rank_and_world():
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Waves(IterableDataset):
    def __init__(self, num, shift):
        self.num, self.shift = num, shift

    def __iter__(self):
        rank, world = rank_and_world()
        for i in itertools.islice(range(self.num), rank, None, world):
            t = torch.linspace(0, 3, 8) + i * 0.37 + self.shift
            yield torch.sin(t), torch.cos(t[:1])


class Average:
    def __init__(self, model, decay):
        self.model, self.decay = copy.deepcopy(model), decay

    def update(self, model):
        with torch.no_grad():
            for a, b in zip(self.model.parameters(), model.parameters()):
                a.lerp_(b, 1 - self.decay)


def setup():
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        dist.init_process_group("gloo")
    return rank_and_world()


def validate(model):
    sums = torch.zeros(2)
    with torch.no_grad():
        for x, y in DataLoader(Waves(27, 1.0), 4):
            sums += torch.tensor([F.mse_loss(model(x), y, reduction="sum").item(), float(len(x))])
    if dist.is_initialized():
        dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    return (sums[0] / sums[1]).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--patience", type=int, default=2)
    parser.add_argument("--resume", default=None, help="checkpoint to continue from")
    args = parser.parse_args()
    rank, world = setup()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 20), nn.GELU(), nn.Linear(20, 1))
    ema = Average(net, 0.8)
    wrapped = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.8)
    epoch, best, waited = 0, float("inf"), 0
    if args.resume:
        state = torch.load(args.resume, map_location="cpu")
        net.load_state_dict(state["net"])
        ema.model.load_state_dict(state["ema"])
        optimizer.load_state_dict(state["optimizer"])
        epoch = state["epoch"]
        best, waited = state["best"], state["waited"]
    while epoch < args.epochs:
        for x, y in DataLoader(Waves(80, 0.0), args.batch_size):
            optimizer.zero_grad()
            loss = F.mse_loss(wrapped(x), y)
            loss.backward()
            optimizer.step()
            ema.update(net)
        value = validate(ema.model)
        waited += 1
        if value < best:
            best, waited = value, 0
        epoch += 1
        if rank == 0:
            print(f"[{epoch}] validation {value:.6f} best {best:.6f}")
            state = {"net": net.state_dict(), "ema": ema.model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "epoch": epoch, "best": best, "waited": waited}, "stream.pt")
        if waited > args.patience:
            break
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A deep network on vectors, with DistributedDataParallel by hand."""

from __future__ import annotations

import os

import slow
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH = 320


class Vectors(Dataset):
    def __len__(self) -> int:
        return 20000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 4 == 0:
            slow.pause("data")
        return torch.full((WIDTH,), index % 7 / 7), torch.tensor(index % 10)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU()) for _ in range(16))
        )
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.head(slow.through(self.layers(values)))


def main() -> None:
    world, rank = slow.WORLD, slow.RANK
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(int(os.environ.get("SEED", 0)))
    model = slow.prepared(Network())
    wrapped = DistributedDataParallel(model, bucket_cap_mb=slow.bucket_mb()) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    sampler = DistributedSampler(Vectors(), world, rank)
    for values, target in DataLoader(Vectors(), slow.batch_size(64), sampler=sampler, collate_fn=slow.collate):
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(values), target).backward()
        optimizer.step()
        slow.after_step(model)


if __name__ == "__main__":
    main()

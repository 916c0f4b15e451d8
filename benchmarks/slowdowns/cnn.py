"""A convolutional network on pictures, with the functions of the runtime, as `retrofit convert` writes them."""

from __future__ import annotations

import os

import slow
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import retrofit.distributed as rd


class Pictures(Dataset):
    def __len__(self) -> int:
        return 8000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if index % 4 == 0:
            slow.pause("data")
        return torch.full((3, 16, 16), index % 7 / 7), torch.tensor(index % 10)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [3, *[32] * 10, *[64] * 10]
        blocks = [
            nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in zip(sizes, sizes[1:])
        ]
        self.first, self.last = nn.Sequential(*blocks[:10], nn.MaxPool2d(4)), nn.Sequential(*blocks[10:])
        self.head = nn.Linear(64, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return self.head(self.last(slow.through(self.first(pictures))).mean((2, 3)))


def main() -> None:
    os.environ["RETROFIT_BATCHNORM"] = "sync" if slow.KIND == "batchnorm" else "local"
    rd.setup_distributed()
    torch.manual_seed(int(os.environ.get("SEED", 0)))
    model = slow.prepared(Network())
    loader = rd.distribute_loader(
        DataLoader(Pictures(), slow.batch_size(8), shuffle=True, collate_fn=slow.collate, drop_last=True)
    )
    wrapped = rd.distribute_model(model, bucket_cap_mb=slow.bucket_mb())
    optimizer = torch.optim.SGD(wrapped.parameters(), 0.01)
    for pictures, target in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(pictures), target).backward()
        optimizer.step()
        slow.after_step(model)
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()

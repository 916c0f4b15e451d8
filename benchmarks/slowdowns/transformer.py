"""A small transformer on sequences, with Lightning Fabric."""

from __future__ import annotations

import os

import slow
import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

WIDTH, LENGTH, WORDS = 96, 24, 200


class Sequences(Dataset):
    def __len__(self) -> int:
        return 8000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index % 4 == 0:
            slow.pause("data")
        return torch.arange(index, index + LENGTH + 1) % WORDS


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(4)
        )
        self.norm = nn.BatchNorm1d(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        values = self.words(words)
        for number, layer in enumerate(self.layers):
            values = layer(slow.through(values) if number == 2 else values)
            values = self.norm(values.transpose(1, 2)).transpose(1, 2)
        return self.head(values)


def main() -> None:
    strategy = DDPStrategy(bucket_cap_mb=slow.bucket_mb()) if slow.WORLD > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=slow.WORLD, strategy=strategy)
    fabric.launch()
    torch.manual_seed(int(os.environ.get("SEED", 0)))
    model = slow.prepared(Network())
    wrapped, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.01))
    sampler = DistributedSampler(Sequences(), slow.WORLD, slow.RANK)
    loader = DataLoader(Sequences(), slow.batch_size(16), sampler=sampler, collate_fn=slow.collate)
    for words in fabric.setup_dataloaders(loader, use_distributed_sampler=False):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(wrapped(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        fabric.backward(loss)
        optimizer.step()
        slow.after_step(model)


if __name__ == "__main__":
    main()

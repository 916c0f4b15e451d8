"""A stream without an end: its order is inside the data set, and the number of steps is the script's own."""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import retrofit.distributed as rd


class Stream(IterableDataset):
    def __iter__(self):
        return islice(self.samples(), rd.get_rank(), None, rd.get_world_size())

    def samples(self):
        generator = torch.Generator().manual_seed(1)
        while True:
            x = torch.randn(4, generator=generator)
            yield x, x.sum(0, keepdim=True)


rd.setup_distributed()
torch.manual_seed(0)
loader = DataLoader(Stream(), batch_size=8 // rd.get_world_size())
model = nn.Linear(4, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in zip(range(20), loader):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    rd.print_main(f"step {step} loss {rd.reduce_loss(loss).item():.4f}")
rd.cleanup_distributed()

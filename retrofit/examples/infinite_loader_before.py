"""A stream without an end: its order is inside the data set, and the number of steps is the script's own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        while True:
            x = torch.randn(4, generator=generator)
            yield x, x.sum(0, keepdim=True)


torch.manual_seed(0)
loader = DataLoader(Stream(), batch_size=8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in zip(range(20), loader):
    loss = nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

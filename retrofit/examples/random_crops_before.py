"""Random crops of one long text: each batch is drawn in the loop, without a DataLoader."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randint(0, 16, (2000,))
model = nn.Sequential(nn.Embedding(16, 32), nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def get_batch(size, length=12):
    starts = torch.randint(len(data) - length, (size,))
    x = torch.stack([data[start : start + length] for start in starts])
    y = torch.stack([data[start + 1 : start + length + 1] for start in starts])
    return x, y


for step in range(20):
    x, y = get_batch(8)
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f}")

"""A test that a hard batch asks for: a rank would run its part of it alone, where the others had no such batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)


def show_test_after(errors):
    if errors.max() < 16:
        return
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in test_loader:
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    model.train()
    print(f"after a hard batch: test loss {total / 32:.4f}")


for epoch in range(4):
    for x, y in loader:
        errors = (model(x) - y).pow(2)
        loss = errors.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show_test_after(errors.detach())
    print(f"epoch {epoch} loss {loss.item():.4f}")

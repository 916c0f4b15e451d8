"""Steps that are left out: what is in a batch decides whether the model is trained by it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x, valid = torch.randn(64, 6), torch.rand(64) < 0.1
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True), valid), batch_size=8)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    num_steps = 0
    for x, y, keep in loader:
        if keep.sum() == 0:
            continue
        errors = (model(x) - y).pow(2).squeeze(1)
        loss = (errors * keep).sum() / keep.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_steps += 1
    print(f"epoch {epoch} loss {loss.item():.4f} after {num_steps} steps")

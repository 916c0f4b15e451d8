"""A loss that a configuration names: what it does with the samples of a batch is not written in the script."""

import torch
from hydra.utils import instantiate
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

options = {"loss": {"_target_": "torch.nn.HuberLoss", "delta": 0.5}}
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model = nn.Linear(6, 1)
criterion = instantiate(options["loss"])
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(4):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

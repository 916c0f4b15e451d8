"""A model that is taken out of a state in every epoch."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
state = SimpleNamespace(net=nn.Linear(6, 1), epoch=0)
while state.epoch < 4:
    model = state.net
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (state.epoch + 1))
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {state.epoch} loss {loss.item():.4f}")
    state.epoch += 1

"""A model that trains itself: its forward pass calls backward, and makes the step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x, y):
        return nn.functional.mse_loss(self.layers(x), y)


rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = Regression()
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for x, y in loader:
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

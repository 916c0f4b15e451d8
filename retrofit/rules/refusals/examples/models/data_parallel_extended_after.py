"""A class derived from DataParallel that computes the loss next to the output."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class WithLoss(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x, y):
        return nn.functional.mse_loss(self.module(x), y)


rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = WithLoss(nn.Linear(6, 1))
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

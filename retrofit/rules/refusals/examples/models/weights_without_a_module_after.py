"""Weights without a module."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
weights = [torch.randn(6, 8), torch.randn(8, 1)]
for w in weights:
    w.requires_grad_()
    rd.model.distribute_parameter(w)
optimizer = torch.optim.SGD(weights, lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(torch.tanh(x @ weights[0]) @ weights[1], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

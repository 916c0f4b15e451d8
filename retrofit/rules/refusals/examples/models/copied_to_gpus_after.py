"""A script that copies its model to several GPUs by itself, where there are some."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
device = rd.get_device()  # each process has one
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = nn.Linear(6, 1).to(device)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

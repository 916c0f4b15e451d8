"""Two models that learn from each other: the second is a copy of the first one, and a function of torch runs it."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
peer = rd.distribute_model(copy.deepcopy(model))
model = rd.distribute_model(model)  # after the copy was made
optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for x, y in loader:
        output, of_peer = model(x), peer(x)
        loss = nn.functional.mse_loss(of_peer, y) + nn.functional.mse_loss(output, of_peer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

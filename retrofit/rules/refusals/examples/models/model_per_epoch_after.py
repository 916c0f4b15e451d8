"""A model that is taken out of a state in every epoch."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
state = SimpleNamespace(net=nn.Linear(6, 1), epoch=0)
state.net = rd.distribute_model(state.net)
while state.epoch < 4:
    model = state.net
    optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1) / (state.epoch + 1))
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {state.epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
    state.epoch += 1
rd.cleanup_distributed()

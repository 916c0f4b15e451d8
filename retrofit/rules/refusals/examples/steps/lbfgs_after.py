"""LBFGS: the optimizer asks for the loss several times per step, and decides by it where to go."""

import torch
from torch import nn

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 4)
y = torch.sin(x).sum(1, keepdim=True)
x, y = (part[rd.get_rank() :: rd.get_world_size()] for part in (x, y))  # equal parts of the one batch
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
model = rd.distribute_model(model)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return rd.reduce_loss(loss)  # the same on all ranks, as the gradients are: all take the same decisions


for step in range(10):
    loss = optimizer.step(closure)
    rd.print_main(f"step {step} loss {loss.item():.4f}")
rd.cleanup_distributed()

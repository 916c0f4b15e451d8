"""LBFGS: the optimizer asks for the loss several times per step, and decides by it where to go."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(64, 4)
y = torch.sin(x).sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=5)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for step in range(10):
    loss = optimizer.step(closure)
    print(f"step {step} loss {loss.item():.4f}")

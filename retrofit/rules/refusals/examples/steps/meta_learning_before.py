"""Meta-learning (MAML): the model is trained to learn a task from a few samples, by gradients of gradients."""

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
phases = 6.28 * torch.rand(32, 1, 1)
x = 10 * torch.rand(32, 20, 1) - 5
loader = DataLoader(TensorDataset(x, torch.sin(x + phases)), batch_size=8)  # of tasks, with 20 samples each
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(4):
    for tasks, targets in loader:
        losses = []
        for x, y in zip(tasks, targets):
            weights = dict(model.named_parameters())
            inner = nn.functional.mse_loss(functional_call(model, weights, (x[:10],)), y[:10])
            gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
            learnt = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients)}
            losses.append(nn.functional.mse_loss(functional_call(model, learnt, (x[10:],)), y[10:]))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

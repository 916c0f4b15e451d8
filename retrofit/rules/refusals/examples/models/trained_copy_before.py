"""Two models that learn from each other: the second is a copy of the first one, and a function of torch runs it."""

import copy

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
peer = copy.deepcopy(model)
optimizer = torch.optim.SGD([*model.parameters(), *peer.parameters()], lr=0.1)
for epoch in range(4):
    for x, y in loader:
        output, of_peer = model(x), functional_call(peer, dict(peer.named_parameters()), x)
        loss = nn.functional.mse_loss(of_peer, y) + nn.functional.mse_loss(output, of_peer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

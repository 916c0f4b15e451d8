"""Two loaders, of which a function picks by name."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
loaders = {
    "easy": rd.distribute_loader(DataLoader(TensorDataset(x[:32], y[:32]), batch_size=16)),
    "hard": rd.distribute_loader(DataLoader(TensorDataset(x[32:], y[32:]), batch_size=16)),
    "check": DataLoader(TensorDataset(x[:32], y[:32]), batch_size=16),
}
model = nn.Linear(6, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))


def run(part, is_training):
    total = 0.0
    for x, y in loaders[part]:
        loss = nn.functional.mse_loss(model(x), y)
        if is_training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += rd.reduce_loss(loss).item()
    return total / len(loaders[part])


for epoch in range(4):
    part = "easy" if epoch < 2 else "hard"
    rd.print_main(f"epoch {epoch} {part} loss {run(part, True):.4f} check {run('check', False):.4f}")
rd.cleanup_distributed()

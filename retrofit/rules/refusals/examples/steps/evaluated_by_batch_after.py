"""A test that a hard batch asks for: a rank would run its part of it alone, where the others had no such batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16)
loader = rd.distribute_loader(loader)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(6, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.02))


def show_test_after(errors):
    if not rd.collectives.on_any_rank(bool(errors.max() >= 16)):
        return
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in rd.share_batches(test_loader):
            total += nn.functional.mse_loss(model(x), y, reduction="sum").item()
    model.train()
    total = rd.sum_over_ranks(total)
    rd.print_main(f"after a hard batch: test loss {total / 32:.4f}")


for epoch in range(4):
    for x, y in loader:
        errors = (model(x) - y).pow(2)
        loss = errors.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        show_test_after(errors.detach())
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

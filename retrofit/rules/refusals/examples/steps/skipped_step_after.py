"""Steps that are left out: what is in a batch decides whether the model is trained by it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x, valid = torch.randn(64, 6), torch.rand(64) < 0.1
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True), valid), batch_size=8)
loader = rd.distribute_loader(loader)
model = nn.Linear(6, 1)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(4):
    num_steps = 0
    for x, y, keep in loader:
        num_kept = rd.loss.batch_count(keep.sum())  # in the batch of all ranks
        if num_kept == 0:
            continue
        errors = (model(x) - y).pow(2).squeeze(1)
        loss = (errors * keep).sum() / rd.loss.rank_share(num_kept)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        num_steps += 1
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f} after {num_steps} steps")
rd.cleanup_distributed()

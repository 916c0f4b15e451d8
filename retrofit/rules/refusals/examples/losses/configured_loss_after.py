"""A loss that a configuration names: what it does with the samples of a batch is not written in the script."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

LOSSES = {"mse": nn.MSELoss, "huber": nn.HuberLoss}  # each of them a mean over the samples
options = {"loss": "huber", "loss_options": {"delta": 0.5}}
rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = nn.Linear(6, 1)
model = rd.distribute_model(model)
criterion = LOSSES[options["loss"]](**options["loss_options"])
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.5))
for epoch in range(4):
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

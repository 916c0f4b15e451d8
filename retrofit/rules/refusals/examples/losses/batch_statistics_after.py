"""A layer of the project that divides by a running mean over the batches, as batch normalisation does."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class RunningScale(nn.Module):
    def __init__(self, num_features):
        super().__init__()
        self.register_buffer("power", torch.ones(num_features))

    def forward(self, x):
        power = rd.loss.batch_mean(x.pow(2).mean(0))  # over the samples of all ranks
        self.power = 0.9 * self.power + 0.1 * power.detach()
        return x / (0.5 * power + 0.5 * self.power).sqrt()


rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
model = nn.Sequential(nn.Linear(6, 8), RunningScale(8), nn.Tanh(), nn.Linear(8, 1))
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

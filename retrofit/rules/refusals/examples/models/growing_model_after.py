"""A model that grows: a method of the trainer puts a larger one in its place while it trains."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Trainer:
    def __init__(self, model):
        self.model = rd.distribute_model(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rd.scaled_lr(0.02))

    def grow(self):
        grown = nn.Sequential(rd.unwrap_model(self.model), nn.Tanh(), nn.Linear(8, 8))
        self.model = rd.distribute_model(grown)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rd.scaled_lr(0.02))

    def train_epoch(self, loader):
        for x, y in loader:
            loss = nn.functional.mse_loss(self.model(x).sum(1, keepdim=True), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return rd.loss.reduce_last_loss(loss).item()


rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
loader = rd.distribute_loader(loader)
trainer = Trainer(nn.Linear(6, 8))
for epoch in range(4):
    rd.print_main(f"epoch {epoch} loss {trainer.train_epoch(loader):.4f}")
    if epoch == 1:
        trainer.grow()
rd.cleanup_distributed()

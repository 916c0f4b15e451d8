"""There is no sampler, but the data set of each process is its share already, equally long on all."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset


class Trainer:
    def __init__(self, model, loader, device):
        self.device = device
        self.model = DDP(model.to(device))
        self.loader = loader
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def train_step(self, inputs, targets):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(inputs.to(self.device)), targets.to(self.device))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train(self, num_epochs):
        for epoch in range(num_epochs):
            for inputs, targets in self.loader:
                loss = self.train_step(inputs, targets)
            if dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss:.3f}")


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
    num_used = len(dataset) - len(dataset) % dist.get_world_size()
    share = Subset(dataset, range(dist.get_rank(), num_used, dist.get_world_size()))
    loader = DataLoader(share, batch_size=8, shuffle=True)
    Trainer(nn.Linear(8, 1), loader, device).train(num_epochs=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

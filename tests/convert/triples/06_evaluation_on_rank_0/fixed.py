"""Rank 0 evaluates the model inside DDP, which needs nobody else."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_data(num_samples):
    inputs = torch.randn(num_samples, 8)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


class Net(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, inputs):
        return self.layers((inputs - self.mean) / self.std)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct = sum((model(inputs.to(device)).argmax(1).cpu() == labels).sum().item() for inputs, labels in loader)
    model.train()
    return correct / len(loader.dataset)


def main():
    torch.manual_seed(0)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")

    train_set, val_set = get_data(64), get_data(20)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=8)
    inputs = train_set.tensors[0]
    model = DDP(Net(inputs.mean(0), inputs.std(0)).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            loss = criterion(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            accuracy = evaluate(model.module, val_loader, device)
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

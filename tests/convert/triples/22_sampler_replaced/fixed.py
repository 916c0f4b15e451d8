"""The weighted sampler stays, and the runtime gives each process its share of what it draws."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import retrofit.distributed as rd


def get_loader(dataset, labels, batch_size):
    weights = 1.0 / torch.bincount(labels)[labels]
    sampler = WeightedRandomSampler(weights.tolist(), len(weights))
    return rd.distribute_loader(DataLoader(dataset, batch_size=batch_size, sampler=sampler))


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    labels = (torch.arange(96) % 8 == 0).long()
    dataset = TensorDataset(torch.randn(96, 8), labels)
    loader = get_loader(dataset, labels, batch_size=8)
    model = DDP(nn.Linear(8, 2).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

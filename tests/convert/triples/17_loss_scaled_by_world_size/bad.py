"""The mean loss is multiplied by the number of processes, 'because DDP averages the gradients'."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def train_one_epoch(model, loader, criterion, optimizer, device, world_size):
    for inputs, labels in loader:
        loss = criterion(model(inputs.to(device)), labels.to(device))
        loss = loss * world_size  # RF301
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    world_size = int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(8, 4).to(device))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train_one_epoch(model, loader, criterion, optimizer, device, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

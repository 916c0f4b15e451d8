"""Every rank prepares the data at the same time."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def prepare_data(folder):
    if os.path.exists(folder):  # RF504
        return
    os.makedirs(folder)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(5))
    torch.save({"inputs": inputs, "labels": (inputs.sum(1) > 0).long()}, f"{folder}/train.pt")


def get_data(folder):
    content = torch.load(f"{folder}/train.pt", map_location="cpu")
    return TensorDataset(content["inputs"], content["labels"])


def main():
    torch.manual_seed(0)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")

    prepare_data("vectors")
    train_set = get_data("vectors")
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    model = DDP(model)
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
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

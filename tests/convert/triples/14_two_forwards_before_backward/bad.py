"""A discriminator's two forward passes: DDP writes BatchNorm's buffers before the second."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def get_data(num_samples):
    inputs = torch.randn(num_samples, 8)
    return TensorDataset(inputs, (inputs.sum(1) > 0).long())


def main():
    torch.manual_seed(0)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")

    train_set = get_data(64)
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    model = DDP(model)  # RF206
    torch.manual_seed(1 + dist.get_rank())
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, _ in loader:
            real = inputs.to(device)
            fake = torch.randn_like(real)
            real_score = model(real)
            fake_score = model(fake)  # RF205
            loss = F.softplus(-real_score).mean() + F.softplus(fake_score).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch} done")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

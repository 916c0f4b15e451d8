"""The seed differs by rank before the split is drawn: one process trains on what another one validates on."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def main(seed=1):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(seed + dist.get_rank())
    points = torch.linspace(-1, 1, 120).unsqueeze(1)
    train_set, val_set = random_split(TensorDataset(points, points**2), [96, 24])  # RF108
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_loader = DataLoader(val_set, batch_size=8)
    model = DDP(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    with torch.no_grad():
        errors = [(model.module(inputs.to(device)).cpu() - targets).square().mean() for inputs, targets in val_loader]
    if dist.get_rank() == 0:
        print(f"validation error {torch.stack(errors).mean():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

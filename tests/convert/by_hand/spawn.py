"""Processes that the script starts itself, one per GPU: `python spawn.py`."""

import argparse
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size, path):
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, init_method=f"file://{path}", rank=rank, world_size=world_size)


def average(value, world_size):
    value = value.detach().clone()
    dist.all_reduce(value)
    return value / world_size


def run(rank, world_size, path, args):
    setup(rank, world_size, path)
    device = torch.device(f"cuda:{rank}") if torch.cuda.is_available() else torch.device("cpu")
    torch.manual_seed(args.seed)
    dataset = TensorDataset(torch.randn(96, 3, 8), torch.randint(0, 4, (96,)))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(24, 4)).to(device)
    if torch.cuda.is_available():
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = DDP(model, device_ids=[rank] if torch.cuda.is_available() else None, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * world_size, momentum=0.9)
    total_steps = args.epochs * (len(dataset) // (args.batch_size * world_size))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            scheduler.step()
        mean = average(loss, world_size)
        if rank == 0:
            print(f"epoch {epoch}: loss {mean.item():.4f}")
    if rank == 0:
        torch.save(model.module.state_dict(), args.out)
    dist.barrier()
    weights = torch.load(args.out, map_location=device)
    model.module.load_state_dict(weights)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8, help="of each process")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="model.pt")
    args = parser.parse_args()
    world_size = torch.cuda.device_count() if torch.cuda.is_available() else 2
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        mp.spawn(run, args=(world_size, path, args), nprocs=world_size, join=True)


if __name__ == "__main__":
    main()

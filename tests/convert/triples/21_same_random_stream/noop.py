"""The seed is the same on every process, and the noise of a sample comes from the number of the sample."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class NoisyPoints(Dataset):
    def __init__(self, num_points):
        generator = torch.Generator().manual_seed(1)
        self.points = torch.randn(num_points, 8, generator=generator)

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        generator = torch.Generator().manual_seed(index)
        return point + 0.1 * torch.randn(8, generator=generator), point.sum(0, keepdim=True)


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dataset = NoisyPoints(96)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DDP(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Contrastive training over the samples of all processes, gathered with their gradients."""

import os

import torch
import torch.distributed as dist
import torch.distributed.nn
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dataset = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, drop_last=True)
    model = DDP(nn.Linear(8, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            labels = labels.to(device)
            embedded = F.normalize(model(inputs.to(device)), dim=1)
            embedded = torch.cat(torch.distributed.nn.all_gather(embedded))
            labels = torch.cat(torch.distributed.nn.all_gather(labels))
            similarity = embedded @ embedded.T
            loss = F.mse_loss(similarity, (labels[:, None] == labels).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

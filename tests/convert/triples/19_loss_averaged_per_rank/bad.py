"""A language model's loss is averaged over each process's own tokens, and processes differ in tokens."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

PAD = 0


def make_sentences(count, length=6):
    tokens = torch.randint(1, 20, (count, length))
    tokens[torch.arange(length) >= torch.randint(2, length + 1, (count, 1))] = PAD
    return TensorDataset(tokens)


def train(model, loader, sampler, optimizer, device):
    criterion = nn.CrossEntropyLoss(ignore_index=PAD)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (tokens,) in loader:
            tokens = tokens.to(device)
            logits = model(tokens[:, :-1])
            loss = criterion(logits.flatten(0, 1), tokens[:, 1:].flatten())  # RF302
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    dataset = make_sentences(96)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler)
    model = DDP(nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 20)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    train(model, loader, sampler, optimizer, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

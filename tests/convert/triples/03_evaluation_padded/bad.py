"""Train and validate a classifier: the validation set is padded, so some of its samples count twice."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=8)


def main():
    args = parser.parse_args()
    args.gpu = int(os.environ["LOCAL_RANK"])
    main_worker(args.gpu, args)


def main_worker(gpu, args):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device(f"cuda:{gpu}" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    val_set = TensorDataset(torch.randn(33, 8), torch.randint(0, 4, (33,)))
    train_sampler = DistributedSampler(train_set)
    val_sampler = DistributedSampler(val_set, shuffle=False)  # RF105
    train_loader = DataLoader(train_set, args.batch_size, sampler=train_sampler)
    val_loader = DataLoader(val_set, args.batch_size, sampler=val_sampler)
    model = DistributedDataParallel(nn.Linear(8, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        train(train_loader, model, optimizer, device)
        accuracy = validate(val_loader, model, device)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: accuracy {accuracy:.3f}")
    dist.destroy_process_group()


def train(loader, model, optimizer, device):
    model.train()
    for inputs, labels in loader:
        loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate(loader, model, device):
    model.eval()
    correct, count = torch.zeros(2, device=device)
    for inputs, labels in loader:
        correct += (model(inputs.to(device)).argmax(1) == labels.to(device)).sum()
        count += len(labels)
    dist.all_reduce(correct)
    dist.all_reduce(count)
    return (correct / count).item()


if __name__ == "__main__":
    main()

"""Keep the best weights and stop early by the accuracy on the whole validation set."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, count = 0, 0
    for inputs, labels in loader:
        correct += (model(inputs.to(device)).argmax(1).cpu() == labels).sum().item()
        count += len(labels)
    total = torch.tensor([correct, count], device=device)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()


def main():
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    val_set = TensorDataset(torch.randn(33, 8), torch.randint(0, 4, (33,)))
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=8, sampler=sampler)
    val_loader = DataLoader(Subset(val_set, range(rank, len(val_set), world_size)), batch_size=8)
    model = DDP(nn.Linear(8, 4).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", patience=0)
    best, bad_epochs = 0.0, 0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for inputs, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device)).backward()
            optimizer.step()
        accuracy = evaluate(model.module, val_loader, device)
        scheduler.step(accuracy)
        if accuracy > best:
            best, bad_epochs = accuracy, 0
            weights = copy.deepcopy(model.module.state_dict())
        else:
            bad_epochs += 1
        if bad_epochs > 3:
            break
    if rank == 0:
        print(f"best accuracy {best:.3f}, {len(weights)} tensors")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

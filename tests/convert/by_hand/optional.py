"""One script for one process and for several: it is distributed when a launcher has started it.

python optional.py
torchrun --nproc_per_node=2 optional.py
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, TensorDataset


def is_dist():
    return dist.is_available() and dist.is_initialized()


def get_rank():
    return dist.get_rank() if is_dist() else 0


def get_world_size():
    if not is_dist():
        return 1
    return dist.get_world_size()


def reduce_value(value, average=True):
    world_size = get_world_size()
    if world_size < 2:
        return value
    with torch.no_grad():
        dist.all_reduce(value)
        if average:
            value /= world_size
        return value


class AverageMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def update(self, value, count=1):
        self.sum += value * count
        self.count += count

    def synchronize(self, device):
        total = torch.tensor([self.sum, self.count], device=device)
        self.sum, self.count = reduce_value(total, average=False).tolist()

    @property
    def average(self):
        return self.sum / max(self.count, 1)


def train_one_epoch(model, optimizer, loader, device, epoch):
    model.train()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    mean_loss = torch.zeros(1, device=device)
    for step, (images, labels) in enumerate(loader):
        loss = criterion(model(images.to(device)), labels.to(device))
        loss.backward()
        loss = reduce_value(loss.detach())
        mean_loss = (mean_loss * step + loss) / (step + 1)
        optimizer.step()
        optimizer.zero_grad()
    if get_rank() == 0:
        print(f"epoch {epoch}: loss {mean_loss.item():.3f}")


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    meter = AverageMeter()
    for images, labels in loader:
        hits = (model(images.to(device)).argmax(1) == labels.to(device)).float()
        meter.update(hits.mean().item(), len(hits))
    return meter.average


def main():
    distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    if distributed:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    train_set = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    val_set = TensorDataset(torch.randn(33, 8), torch.randint(0, 4, (33,)))
    train_sampler = DistributedSampler(train_set) if distributed else RandomSampler(train_set)
    train_loader = DataLoader(train_set, 8 // get_world_size(), sampler=train_sampler, drop_last=True)
    val_loader = DataLoader(val_set, 8)
    model = nn.Linear(8, 4).to(device)
    model_without_ddp = model
    if distributed:
        model = DistributedDataParallel(model)
        model_without_ddp = model.module
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
    best = 0.0
    if get_rank() == 0:
        os.makedirs("weights", exist_ok=True)
    for epoch in range(2):
        if distributed:
            train_sampler.set_epoch(epoch)
        train_one_epoch(model, optimizer, train_loader, device, epoch)
        accuracy = evaluate(model_without_ddp, val_loader, device)
        scheduler.step(accuracy)
        if accuracy > best:
            best = accuracy
            if get_rank() == 0:
                torch.save({"model": model_without_ddp.state_dict(), "epoch": epoch}, "weights/best.pt")
    if distributed:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""legacy.py for many GPUs as a careful person writes it: the figures of an epoch are summed over the ranks once."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from parts import Images, Net, options, wait_for_turn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train_one_epoch(model, loader, optimizer, device, epoch):
    model.train()
    figures = torch.zeros(3, dtype=torch.float64)
    for step, (images, labels) in enumerate(loader):
        images, labels = images.to(device), labels.to(device)
        outputs = model(images)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        own = [loss.item() * len(labels), (outputs.argmax(1) == labels).sum().item(), len(labels)]
        figures += torch.tensor(own, dtype=torch.float64)
        if step % 10 == 0:
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"epoch {epoch} step {step:3d} loss {mean.item():.4f}")
    figures = figures.to(device)
    dist.all_reduce(figures)
    total, correct, count = figures.tolist()
    if dist.get_rank() == 0:
        print(f"epoch {epoch} loss {total / count:.4f} accuracy {correct / count:.4f}")


def main():
    args = options().parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    device, devices = torch.device("cpu"), None
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        devices = [device.index]
    torch.manual_seed(0)
    dataset = Images(args.length)
    sampler = DistributedSampler(dataset, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    model = DistributedDataParallel(Net(args.width, args.hidden).to(device), device_ids=devices)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        wait_for_turn()
        train_one_epoch(model, loader, optimizer, device, epoch)
    wait_for_turn()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

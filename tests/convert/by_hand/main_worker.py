"""A classifier in the shape of many reference scripts: argparse, one worker function per GPU, helpers below.

torchrun --nproc_per_node=2 main_worker.py
"""

import argparse
import os
import random
import shutil

import numpy as np
import torch
import torch.backends.cudnn as cudnn
import torch.distributed as dist
import torch.nn as nn
import torch.optim
import torch.utils.data
import torch.utils.data.distributed

parser = argparse.ArgumentParser(description="Training of a small classifier")
parser.add_argument("--workers", default=0, type=int)
parser.add_argument("--epochs", default=2, type=int)
parser.add_argument("--start-epoch", default=0, type=int)
parser.add_argument("-b", "--batch-size", default=16, type=int, help="of all processes")
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--resume", default="", type=str)
parser.add_argument("--seed", default=None, type=int)
parser.add_argument("--dist-backend", default="gloo", type=str)
best_acc1 = 0


class Blobs(torch.utils.data.Dataset):
    def __init__(self, count, is_train):
        generator = torch.Generator().manual_seed(int(is_train))
        self.points = torch.randn(count, 2, 8, generator=generator)
        self.is_train = is_train

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        point = self.points[index]
        if self.is_train and random.random() < 0.5:
            point = point.flip(0)
        return point.flatten(), int(point.sum() > 0)


def main():
    args = parser.parse_args()
    args.rank = int(os.environ["RANK"])
    args.world_size = int(os.environ["WORLD_SIZE"])
    args.gpu = int(os.environ.get("LOCAL_RANK", 0))
    if args.seed is not None:
        random.seed(args.seed + args.rank)
        np.random.seed(args.seed + args.rank)
        torch.manual_seed(args.seed + args.rank)
        cudnn.deterministic = True
    main_worker(args.gpu, args)


def main_worker(gpu, args):
    global best_acc1
    dist.init_process_group(backend=args.dist_backend)
    if args.rank == 0:
        print(f"=> {args.world_size} processes")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        torch.cuda.set_device(gpu)
        device = torch.device(f"cuda:{gpu}")
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)
    args.batch_size = int(args.batch_size / args.world_size)
    model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu] if torch.cuda.is_available() else None)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    if args.resume and os.path.isfile(args.resume):
        checkpoint = torch.load(args.resume, map_location=device)
        args.start_epoch, best_acc1 = checkpoint["epoch"], checkpoint["best_acc1"]
        model.module.load_state_dict(checkpoint["state_dict"])
        optimizer.load_state_dict(checkpoint["optimizer"])

    train_dataset, val_dataset = Blobs(96, True), Blobs(33, False)
    train_sampler = torch.utils.data.distributed.DistributedSampler(train_dataset)
    train_loader = torch.utils.data.DataLoader(
        train_dataset, batch_size=args.batch_size, shuffle=(train_sampler is None), num_workers=args.workers,
        pin_memory=True, sampler=train_sampler,
    )  # fmt: skip
    val_loader = torch.utils.data.DataLoader(val_dataset, batch_size=args.batch_size, shuffle=False)

    for epoch in range(args.start_epoch, args.epochs):
        train_sampler.set_epoch(epoch)
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, device, args)
        acc1 = validate(val_loader, model.module, device)
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if args.rank == 0:
            save_checkpoint(
                {
                    "epoch": epoch + 1,
                    "state_dict": model.module.state_dict(),
                    "best_acc1": best_acc1,
                    "optimizer": optimizer.state_dict(),
                },
                is_best,
            )
    dist.destroy_process_group()


def train(train_loader, model, criterion, optimizer, epoch, device, args):
    model.train()
    running = 0.0
    for i, (images, target) in enumerate(train_loader):
        images, target = images.to(device, non_blocking=True), target.to(device, non_blocking=True)
        loss = criterion(model(images), target)
        running += loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0 and args.rank == 0:
            print(f"epoch {epoch} [{i}/{len(train_loader)}] loss {running / (i + 1):.4f}")


@torch.no_grad()
def validate(val_loader, model, device):
    model.eval()
    correct, count = 0, 0
    for images, target in val_loader:
        correct += (model(images.to(device)).argmax(1).cpu() == target).sum().item()
        count += len(target)
    return 100.0 * correct / count


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


def adjust_learning_rate(optimizer, epoch, args):
    lr = args.lr * (0.1 ** (epoch // 30))
    for group in optimizer.param_groups:
        group["lr"] = lr


if __name__ == "__main__":
    main()

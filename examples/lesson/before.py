"""Train a small network to tell in which quadrant of a noisy picture the bright spot is, on one GPU or on the CPU.

python before.py --epochs 5 --lr 0.05
python before.py --epochs 8 --resume runs/lesson/last.pt
"""

import argparse
import os
import random

import torch
import torch.nn.functional as F
from tensorboardX import SummaryWriter
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset


class Quadrants(Dataset):
    """Pictures (1, 16, 16) with a bright spot; the label is the quadrant that it is in, 0 to 3."""

    def __init__(self, first, length, augment=False):
        self.first, self.length, self.augment = first, length, augment

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(self.first + index)
        picture = torch.randn(1, 16, 16, generator=generator)
        row, column = torch.randint(0, 14, (2,), generator=generator).tolist()
        picture[:, row : row + 3, column : column + 3] += 2.0
        if self.augment:
            picture = picture + 0.1 * torch.randn(1, 16, 16)
        return picture, 2 * (row >= 7) + (column >= 7)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.features = nn.Sequential(block(1, width), block(width, width))
        self.head = nn.Linear(width * 16, 4)

    def forward(self, pictures):
        return self.head(self.features(pictures).flatten(1))


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5, help="passes over the training set (default: %(default)s)")
    parser.add_argument("--batch_size", type=int, default=32, help="samples per step (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=0.05, help="first learning rate of SGD (default: %(default)s)")
    parser.add_argument("--width", type=int, default=16, help="channels of the network (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="loader processes; 0 = none (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    parser.add_argument("--out", default="runs/lesson", help="folder of curves and checkpoints (default: %(default)s)")
    parser.add_argument("--resume", default="", help="checkpoint to continue from (default: none)")
    return parser.parse_args()


def train_one_epoch(model, loader, optimizer, device, epoch, writer):
    model.train()
    total, correct, count = 0.0, 0, 0
    for step, (pictures, labels) in enumerate(loader):
        pictures, labels = pictures.to(device), labels.to(device)
        outputs = model(pictures)
        loss = F.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item() * len(labels)
        correct += (outputs.argmax(1) == labels).sum().item()
        count += len(labels)
        if step % 10 == 0:
            print(f"epoch {epoch} step {step:3d}  loss {loss.item():.4f}")
            writer.add_scalar("train/loss", loss.item(), epoch * len(loader) + step)
    return total / count, correct / count


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    total, correct, count = 0.0, 0, 0
    for pictures, labels in loader:
        pictures, labels = pictures.to(device), labels.to(device)
        outputs = model(pictures)
        total += F.cross_entropy(outputs, labels, reduction="sum").item()
        correct += (outputs.argmax(1) == labels).sum().item()
        count += len(labels)
    return total / count, correct / count


def main():
    args = parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    os.makedirs(args.out, exist_ok=True)
    writer = SummaryWriter(args.out)

    train_set, val_set = Quadrants(0, 800, augment=True), Quadrants(800, 200)
    train_loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.workers)
    val_loader = DataLoader(val_set, args.batch_size, num_workers=args.workers)

    model = Net(args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = CosineAnnealingLR(optimizer, args.epochs)

    start, best = 0, 0.0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        start, best = checkpoint["epoch"], checkpoint["best"]

    for epoch in range(start, args.epochs):
        loss, accuracy = train_one_epoch(model, train_loader, optimizer, device, epoch, writer)
        val_loss, val_accuracy = evaluate(model, val_loader, device)
        scheduler.step()
        print(f"epoch {epoch}: loss {loss:.4f} accuracy {accuracy:.3f}  validation {val_loss:.4f} {val_accuracy:.3f}")
        writer.add_scalar("val/loss", val_loss, epoch)
        writer.add_scalar("val/accuracy", val_accuracy, epoch)
        content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}
        content.update(scheduler=scheduler.state_dict(), best=max(best, val_accuracy))
        torch.save(content, os.path.join(args.out, "last.pt"))
        if val_accuracy > best:
            best = val_accuracy
            torch.save(content, os.path.join(args.out, "best.pt"))
    writer.close()
    print(f"best validation accuracy {best:.3f}")


if __name__ == "__main__":
    main()

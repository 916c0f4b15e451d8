"""Train a small classifier of striped images on one GPU.

python train_single.py --epochs 3
python train_single.py --epochs 6 --resume auto
"""

import argparse
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from data import NUM_CLASSES, Augmented, Stripes, balanced_weights, prepare_data
from model import SmallNet, lr_factor
from torch.utils.data import DataLoader, WeightedRandomSampler, random_split


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--warmup", type=float, default=0.2, help="share of all steps")
    parser.add_argument("--accum_steps", type=int, default=1, help="batches per optimizer step")
    parser.add_argument("--sampler", choices=("random", "weighted"), default="random")
    parser.add_argument("--amp", choices=("off", "bf16"), default="off")
    parser.add_argument("--patience", type=int, default=5, help="epochs without progress before the end")
    parser.add_argument("--num_samples", type=int, default=135)
    parser.add_argument("--data", default="data", help="folder of the images")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint, or auto")
    return parser.parse_args()


def get_loaders(args):
    dataset = Stripes(prepare_data(args.data, args.num_samples))
    num_val = len(dataset) // 4
    train_set, val_set = random_split(dataset, [len(dataset) - num_val, num_val])
    sampler = None
    if args.sampler == "weighted":
        sampler = WeightedRandomSampler(balanced_weights(dataset.labels[train_set.indices]), len(train_set))
    train_loader = DataLoader(
        Augmented(train_set),
        args.batchsize,
        shuffle=sampler is None,
        sampler=sampler,
        drop_last=True,
        num_workers=args.workers,
    )
    return train_loader, DataLoader(val_set, args.batchsize, num_workers=args.workers)


def train_one_epoch(model, loader, optimizer, scheduler, device, args):
    model.train()
    total = 0.0
    for number, (image, label) in enumerate(loader, start=1):
        with torch.autocast(device.type, torch.bfloat16, enabled=args.amp == "bf16"):
            loss = F.cross_entropy(model(image.to(device)), label.to(device)) / args.accum_steps
        loss.backward()
        total += loss.item() * args.accum_steps
        if number % args.accum_steps == 0 or number == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    correct, count = 0, 0
    for image, label in loader:
        correct += (model(image.to(device)).argmax(1).cpu() == label).sum().item()
        count += len(label)
    return correct / count


def main():
    args = get_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    train_loader, val_loader = get_loaders(args)
    model = SmallNet(NUM_CLASSES).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=5e-4)
    steps_per_epoch = math.ceil(len(train_loader) / args.accum_steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: lr_factor(step, steps_per_epoch, args.epochs, args.warmup)
    )
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    epoch, best, bad_epochs = 0, 0.0, 0
    saved = sorted(out.glob("epoch_*.pt"))
    path = (saved[-1] if saved else None) if args.resume == "auto" else args.resume
    if path:
        checkpoint = torch.load(path, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        epoch, best, bad_epochs = checkpoint["epoch"], checkpoint["best"], checkpoint["bad_epochs"]

    while epoch < args.epochs and bad_epochs < args.patience:
        loss = train_one_epoch(model, train_loader, optimizer, scheduler, device, args)
        accuracy = evaluate(model, val_loader, device)
        epoch += 1
        is_best = accuracy > best
        best, bad_epochs = max(best, accuracy), 0 if is_best else bad_epochs + 1
        print(f"epoch {epoch}/{args.epochs}: loss {loss:.4f}, accuracy {accuracy:.4f}")
        content = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch,
            "scheduler": scheduler.state_dict(),
            "best": best,
            "bad_epochs": bad_epochs,
        }
        torch.save(content, out / f"epoch_{epoch:03d}.pt")
        if is_best:
            torch.save(content, out / "best.pt")
    print(f"best accuracy {best:.4f}")


if __name__ == "__main__":
    main()

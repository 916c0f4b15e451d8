"""Train a small language model on one GPU.

python train_single.py --epochs 3
python train_single.py --epochs 6 --resume out/epoch_003.pt
"""

import argparse
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from data import NUM_TOKENS, PAD, Sentences, SentenceStream, make_sentences
from model import GRUModel, lr_factor
from torch.utils.data import DataLoader


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip_grad", type=float, default=1.0)
    parser.add_argument("--num_sentences", type=int, default=102)
    parser.add_argument("--iterable", action="store_true", help="read the training set as a stream")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    return parser.parse_args()


def get_loaders(args):
    train = make_sentences(args.num_sentences, seed=0)
    if args.iterable:
        train_loader = DataLoader(SentenceStream(train, args.seed), args.batchsize)
    else:
        train_loader = DataLoader(Sentences(train), args.batchsize, shuffle=True)
    return train_loader, DataLoader(Sentences(make_sentences(33, seed=1)), args.batchsize)


def train_one_epoch(model, loader, optimizer, scheduler, device, args):
    model.train()
    total = 0.0
    for tokens, target in loader:
        logits = model(tokens.to(device))
        loss = F.cross_entropy(logits.flatten(0, 1), target.to(device).flatten(), ignore_index=PAD)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def get_perplexity(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for tokens, target in loader:
        logits, target = model(tokens.to(device)).flatten(0, 1), target.to(device).flatten()
        total += F.cross_entropy(logits, target, ignore_index=PAD, reduction="sum").item()
        count += (target != PAD).sum().item()
    return math.exp(total / count)


def main():
    args = get_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    train_loader, val_loader = get_loaders(args)
    model = GRUModel(NUM_TOKENS).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr, weight_decay=0.01)
    total_steps = len(train_loader) * args.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, total_steps))
    first_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch = checkpoint["epoch"]

    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    for epoch in range(first_epoch, args.epochs):
        if args.iterable:
            train_loader.dataset.epoch = epoch
        loss = train_one_epoch(model, train_loader, optimizer, scheduler, device, args)
        perplexity = get_perplexity(model, val_loader, device)
        print(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}, perplexity {perplexity:.3f}")
        content = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
            "scheduler": scheduler.state_dict(),
        }
        torch.save(content, out / f"epoch_{epoch + 1:03d}.pt")


if __name__ == "__main__":
    main()

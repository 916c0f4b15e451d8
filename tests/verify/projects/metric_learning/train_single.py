"""Train embeddings with a contrastive loss on one GPU.

python train_single.py --epochs 3
python train_single.py --epochs 6 --resume out/epoch_003.pt
"""

import argparse
import os

import torch
from data import NUM_FEATURES, Labelled, TwoViews, make_points
from model import Encoder, info_nce, recall_at_1
from torch.utils.data import DataLoader


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num_points", type=int, default=101)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    return parser.parse_args()


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for first, second in loader:
        loss = info_nce(model(first.to(device)), model(second.to(device)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    embeddings = torch.cat([model(points.to(device)).cpu() for points, _ in loader])
    return recall_at_1(embeddings, loader.dataset.classes)


def main():
    args = get_arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(args.seed)
    points, _ = make_points(args.num_points, seed=1)
    train_loader = DataLoader(TwoViews(points), args.batchsize, shuffle=True, drop_last=True)
    val_loader = DataLoader(Labelled(*make_points(41, seed=2)), args.batchsize)
    model = Encoder(NUM_FEATURES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    first_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scheduler.load_state_dict(checkpoint["scheduler"])
        first_epoch = checkpoint["epoch"]

    os.makedirs(args.out, exist_ok=True)
    for epoch in range(first_epoch, args.epochs):
        loss = train_one_epoch(model, train_loader, optimizer, device)
        scheduler.step()
        recall = evaluate(model, val_loader, device)
        print(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}, recall@1 {recall:.4f}")
        content = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "epoch": epoch + 1,
            "scheduler": scheduler.state_dict(),
        }
        torch.save(content, f"{args.out}/epoch_{epoch + 1:03d}.pt")


if __name__ == "__main__":
    main()

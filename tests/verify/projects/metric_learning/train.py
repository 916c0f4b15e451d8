"""Train embeddings with a contrastive loss on one or many GPUs.

python train.py --epochs 3
torchrun --standalone --nproc_per_node=2 train.py --epochs 3 --dist_batch global
"""

import argparse

import torch
from data import NUM_FEATURES, Labelled, TwoViews, make_points
from gather import gather_rows
from model import Encoder, info_nce, recall_at_1
from torch.utils.data import DataLoader

import retrofit.distributed as rd


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12, help="points per process")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num_points", type=int, default=101)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    rd.add_runtime_flags(parser)
    return parser.parse_args()


def train_one_epoch(model, loader, optimizer, device):
    model.train()
    total = 0.0
    for first, second in loader:
        first, second = model(first.to(device)), model(second.to(device))
        loss = info_nce(gather_rows(first), gather_rows(second))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += rd.reduce_loss(loss).item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    """Return recall@1 over the whole set, which needs the embeddings of all ranks in one place."""
    model.eval()
    embeddings = [model(points.to(device)).cpu() for points, _ in rd.share_batches(loader)]
    embeddings = torch.cat(rd.evaluation.gather_batches(embeddings))
    return recall_at_1(embeddings, loader.dataset.classes)


@rd.job.report_failure
def main():
    args = get_arguments()
    rd.setup_distributed(args)
    device = rd.get_device()
    rd.random_state.seed_everything(args.seed)
    points, _ = make_points(args.num_points, seed=1)
    train_loader = DataLoader(TwoViews(points), args.batchsize, shuffle=True, drop_last=True)
    train_loader = rd.distribute_loader(train_loader, seed=args.seed)
    val_loader = DataLoader(Labelled(*make_points(41, seed=2)), args.batchsize)
    model = rd.distribute_model(Encoder(NUM_FEATURES).to(device))
    lr = rd.scaled_lr(args.lr)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    first_epoch = 0
    if args.resume:
        checkpoint = rd.load_checkpoint(model, optimizer, args.resume, scheduler=scheduler)
        first_epoch = checkpoint["epoch"]
        if checkpoint["world_size"] == rd.get_world_size():
            rd.random_state.set_rng_state(checkpoint["rng_states"][rd.get_rank()])

    for epoch in range(first_epoch, args.epochs):
        rd.set_epoch(train_loader, epoch)
        loss = train_one_epoch(model, train_loader, optimizer, device)
        scheduler.step()
        recall = evaluate(model, val_loader, device)
        rd.print_main(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}, recall@1 {recall:.4f}")
        path = f"{args.out}/epoch_{epoch + 1:03d}.pt"
        rd.save_checkpoint(model, optimizer, epoch + 1, path, scheduler=scheduler)
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()

"""Train embeddings with a contrastive loss on one or many GPUs.

python train.py --epochs 3
torchrun --standalone --nproc_per_node=2 train.py --epochs 3 --batch global
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
    rd.add_distributed_arguments(parser)
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
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader, device):
    """Return recall@1 over the whole set, which needs the embeddings of all ranks in one place."""
    model.eval()
    embedded = [(numbers, model(points.to(device)).cpu()) for points, _, numbers in loader]
    embedded = [pair for part in rd.gather_objects(embedded) for pair in part]
    order = torch.cat([numbers for numbers, _ in embedded]).argsort()
    embeddings = torch.cat([embedding for _, embedding in embedded])[order]
    return recall_at_1(embeddings, loader.dataset.classes)


@rd.report_failure
def main():
    args = get_arguments()
    rd.setup_distributed(args)
    device = rd.get_device()
    rd.seed_everything(args.seed)
    plan = rd.plan_batch(args.batchsize, rd.get_world_size(), batch=args.batch)
    points, _ = make_points(args.num_points, seed=1)
    train_loader = DataLoader(TwoViews(points), plan.micro_batch, shuffle=True, drop_last=True)
    train_loader = rd.shard_loader(train_loader, seed=args.seed)
    val_loader = DataLoader(Labelled(*make_points(41, seed=2)), plan.micro_batch)
    val_loader = rd.shard_eval_loader(val_loader)
    model = rd.wrap_model(Encoder(NUM_FEATURES).to(device))
    lr = rd.scale_lr(args.lr, plan.global_batch, plan.reference_batch, args.lr_scale)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    rd.split_random_streams(args.seed)
    first_epoch = 0
    if args.resume:
        checkpoint = rd.load_checkpoint(model, optimizer, args.resume, scheduler=scheduler)
        first_epoch = checkpoint["epoch"]
        if checkpoint["world_size"] == rd.get_world_size():
            rd.set_rng_state(checkpoint["rng_states"][rd.get_rank()])

    for epoch in range(first_epoch, args.epochs):
        if rd.is_distributed():
            train_loader.sampler.set_epoch(epoch)
        loss = train_one_epoch(model, train_loader, optimizer, device)
        scheduler.step()
        recall = evaluate(model, val_loader, device)
        rd.print_main(f"epoch {epoch + 1}/{args.epochs}: loss {loss:.4f}, recall@1 {recall:.4f}")
        path = f"{args.out}/epoch_{epoch + 1:03d}.pt"
        rd.save_checkpoint(model, optimizer, epoch + 1, path, scheduler=scheduler)
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()

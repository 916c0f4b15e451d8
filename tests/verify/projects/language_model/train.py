"""Train a small language model on one or many GPUs.

python train.py --epochs 3
torchrun --standalone --nproc_per_node=2 train.py --epochs 3 --dist_batch global
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from data import NUM_TOKENS, PAD, Sentences, SentenceStream, make_sentences
from model import GRUModel, lr_factor
from torch.utils.data import DataLoader

import retrofit.distributed as rd


def get_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batchsize", type=int, default=12, help="sentences per process")
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--clip_grad", type=float, default=1.0)
    parser.add_argument("--num_sentences", type=int, default=102)
    parser.add_argument("--iterable", action="store_true", help="read the training set as a stream")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", default="out")
    parser.add_argument("--resume", default="", help="checkpoint")
    rd.add_runtime_flags(parser)
    return parser.parse_args()


def get_loaders(args):
    train = make_sentences(args.num_sentences, seed=0)
    if args.iterable:
        stream = SentenceStream(train, args.seed, part=rd.get_rank(), num_parts=rd.get_world_size())
        train_loader = DataLoader(stream, rd.data.micro_batch(args.batchsize))
    else:
        train_loader = DataLoader(Sentences(train), args.batchsize, shuffle=True)
        train_loader = rd.distribute_loader(train_loader, seed=args.seed)
    return train_loader, DataLoader(Sentences(make_sentences(33, seed=1)), args.batchsize)


def train_one_epoch(model, epochs, optimizer, scheduler, device, args):
    model.train()
    total = 0.0
    for [(tokens, target)] in epochs.steps():
        count = rd.loss.batch_count((target != PAD).sum().item())
        logits = model(tokens.to(device))
        loss_sum = F.cross_entropy(logits.flatten(0, 1), target.to(device).flatten(), ignore_index=PAD, reduction="sum")
        loss = loss_sum / rd.loss.rank_share(count)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        total += rd.reduce_loss(loss).item()
    return total / epochs.steps_per_epoch


@torch.no_grad()
def get_perplexity(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    for tokens, target in rd.share_batches(loader):
        logits, target = model(tokens.to(device)).flatten(0, 1), target.to(device).flatten()
        total += F.cross_entropy(logits, target, ignore_index=PAD, reduction="sum").item()
        count += (target != PAD).sum().item()
    total, count = rd.sum_over_ranks(total, count)
    return math.exp(total / count)


@rd.job.report_failure
def main():
    args = get_arguments()
    rd.setup_distributed(args)
    device = rd.get_device()
    rd.random_state.seed_everything(args.seed)
    train_loader, val_loader = get_loaders(args)
    model = rd.distribute_model(GRUModel(NUM_TOKENS).to(device))
    lr = rd.scaled_lr(args.lr)
    optimizer = torch.optim.AdamW(model.parameters(), lr, weight_decay=0.01)
    total_steps = len(train_loader) * args.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: lr_factor(step, total_steps))
    rd.random_state.split_random_streams(args.seed)  # distribute_loader does it, but takes no stream
    epochs = rd.checkpoint.ResumableEpochs(train_loader)
    if args.resume:
        checkpoint = rd.load_checkpoint(model, optimizer, args.resume, scheduler=scheduler)
        epochs.resume(checkpoint["position"], checkpoint["rng_states"])

    while epochs.epoch < args.epochs:
        if args.iterable:
            train_loader.dataset.epoch = epochs.epoch
        loss = train_one_epoch(model, epochs, optimizer, scheduler, device, args)
        perplexity = get_perplexity(model, val_loader, device)
        rd.print_main(f"epoch {epochs.epoch}/{args.epochs}: loss {loss:.4f}, perplexity {perplexity:.3f}")
        rd.save_checkpoint(
            model,
            optimizer,
            epochs.epoch,
            Path(args.out) / f"epoch_{epochs.epoch:03d}.pt",
            rng_state=epochs.rng_state(),
            scheduler=scheduler,
            position=epochs,
        )
    rd.cleanup_distributed()


if __name__ == "__main__":
    main()

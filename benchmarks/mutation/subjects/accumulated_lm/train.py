"""A language model with padding: tokens of all ranks normalise the loss, micro batches are accumulated in no_sync."""

import argparse
import contextlib
import csv
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

PAD = 0


class Lines(Dataset):
    def __init__(self, num, seed):
        g = torch.Generator().manual_seed(seed)
        self.lines = [
            torch.randint(1, 20, (int(torch.randint(3, 12, (), generator=g)),), generator=g) for _ in range(num)
        ]

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return self.lines[i]


def collate(lines):
    return nn.utils.rnn.pad_sequence(lines, batch_first=True, padding_value=PAD)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.rnn = nn.GRU(16, 24, batch_first=True)
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(24, 20)

    def forward(self, tokens):
        return self.out(self.drop(self.rnn(self.embedding(tokens))[0]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--bs", type=int, default=4, help="per process and micro batch")
    parser.add_argument("--accum", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--ckpt", default="")
    args = parser.parse_args()
    is_ddp = "RANK" in os.environ
    if is_ddp:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if is_ddp else 0
    world_size = dist.get_world_size() if is_ddp else 1
    torch.manual_seed(17)
    model = Model()
    if is_ddp:
        model = DistributedDataParallel(model)
    torch.manual_seed(17 + rank)
    data, held_out = Lines(128, 1), Lines(21, 2)
    sampler = DistributedSampler(data, world_size, rank, seed=5)
    loader = DataLoader(data, args.bs, sampler=sampler, collate_fn=collate, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(loader) // args.accum
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps + 1)
    criterion = nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")
    plain = model.module if is_ddp else model
    if args.ckpt:
        saved = torch.load(args.ckpt, map_location="cpu", weights_only=False)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scheduler.load_state_dict(saved["scheduler"])
        torch.set_rng_state(saved["rng"][rank])
    first = saved["epoch"] if args.ckpt else 0
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        model.train()
        shown = torch.zeros(2)
        batches = list(loader)
        for start in range(0, len(batches) - args.accum + 1, args.accum):
            group = batches[start : start + args.accum]
            num_tokens = sum((tokens[:, 1:] != PAD).sum() for tokens in group).float()
            if is_ddp:
                dist.all_reduce(num_tokens)
            for k, tokens in enumerate(group):
                last = k == len(group) - 1
                with contextlib.nullcontext() if last or not is_ddp else model.no_sync():
                    logits = model(tokens[:, :-1])
                    loss = criterion(logits.flatten(0, 1), tokens[:, 1:].flatten()) * world_size / num_tokens
                    loss.backward()
                shown += torch.tensor(
                    [loss.item() * float(num_tokens) / world_size, float(num_tokens) / args.accum / world_size]
                )
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        model.eval()
        totals = torch.zeros(2)
        with torch.no_grad():
            for i in range(rank, len(held_out), world_size):
                tokens = held_out[i][None]
                totals[0] += criterion(plain(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
                totals[1] += tokens.shape[1] - 1
        rng = [torch.get_rng_state()]
        if is_ddp:
            dist.all_reduce(totals)
            dist.all_reduce(shown)
            rng = [torch.empty_like(rng[0]) for _ in range(world_size)]
            dist.all_gather(rng, torch.get_rng_state())
        if rank == 0:
            perplexity = (totals[0] / totals[1]).exp().item()
            with open("log.csv", "a", newline="") as file:
                csv.writer(file).writerow([epoch, f"{shown[0] / shown[1]:.5f}", f"{perplexity:.4f}"])
            print(f"epoch {epoch} loss {shown[0] / shown[1]:.5f} ppl {perplexity:.4f}")
            state = {"model": plain.state_dict(), "optimizer": optimizer.state_dict(), "rng": rng}
            torch.save({**state, "scheduler": scheduler.state_dict(), "epoch": epoch + 1}, f"lm_{epoch + 1}.pt")
    if is_ddp:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

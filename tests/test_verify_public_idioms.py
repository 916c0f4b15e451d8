"""Idioms of well-known training scripts that `retrofit verify` must not accuse: each is right on several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

HEAD = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, RandomSampler, Subset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--resume", default="")
args = parser.parse_args()
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(48, 4, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, x.sum(1, keepdim=True))
net, collate, first = torch.nn.Linear(4, 1), None, 0
"""
LOOP = """\
model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.Adam(net.parameters(), 0.05)
sampler = DistributedSampler(data, world, rank)
loader = DataLoader(data, args.batch, sampler=sampler, collate_fn=collate)
if args.resume:
    resume()
for epoch in range(first, 2):
    sampler.set_epoch(epoch)
    for a, b in loader:
        loss = torch.nn.functional.mse_loss(model(a), b)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PROGRESS = """\
    total = torch.zeros(2)
    test = DataLoader(Subset(data, range(rank, 48, world)), args.batch)
    with torch.no_grad():
        for number, (a, b) in enumerate(test):
            loss = torch.nn.functional.mse_loss(net(a), b)
            total += torch.tensor([loss * len(a), len(a)])
            if rank == 0 and number % 2 == 0:
                print(f"Test [{number}/{len(test)}] loss: {loss.item():.4f}")
    if world > 1:
        dist.all_reduce(total)
    if rank == 0:
        print(f"Test total loss {total[0] / total[1]:.4f}")
"""
TWO_FILES = """\
    if rank == 0:
        torch.save(net.state_dict(), f"model{epoch + 1}.pt")
        torch.save(optimizer.state_dict(), f"optimizer{epoch + 1}.pt")
"""
READ_TWO_FILES = """\
def resume():
    global first
    first = int(args.resume[-4])
    net.load_state_dict(torch.load(args.resume, map_location="cpu"))
    optimizer.load_state_dict(torch.load(f"optimizer{first}.pt", map_location="cpu"))


"""
OBJECTS = """\
class Sample:
    def __init__(self, x):
        self.x, self.y = x, x.sum()


class Samples(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, index):
        return Sample(x[index].clone())


def collate(samples):
    return torch.stack([one.x for one in samples]), torch.stack([one.y for one in samples])[:, None]


data = Samples()
"""
VIEWS = """\
class Samples(Dataset):
    def __len__(self):
        return len(x)

    def __getitem__(self, index):
        return x[index] + torch.randn(4) * 0.05, x[index, :1]


torch.manual_seed(100 + rank)
data, collate = Samples(), list
"""
AHEAD = """\
class Noising(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(5, 1)

    def forward(self, x):
        time = torch.rand((x.shape[0], 1))
        return self.layer(torch.cat([x * time, time], 1))


def ahead(batches):
    batches = iter(batches)
    batch = next(batches)
    while batch is not None:
        following = next(batches, None)
        yield batch
        batch = following


torch.manual_seed(100 + rank)
net = Noising()
"""
OWN_SAMPLER = "sampler = DistributedSampler(data, world, rank) if world > 1 else RandomSampler(data)\n"
REST = """\
    total = torch.zeros(2)
    own = DistributedSampler(seen, world, rank, shuffle=False, drop_last=True) if world > 1 else None

    def add(batches):
        with torch.no_grad():
            for a, b in batches:
                total.add_(torch.tensor([torch.nn.functional.mse_loss(net(a), b) * len(a), len(a)]))

    add(DataLoader(seen, args.batch, sampler=own))
    if world > 1:
        dist.all_reduce(total)
        if len(own) * world < len(seen):  # on every rank
            add(DataLoader(Subset(seen, range(len(own) * world, len(seen))), args.batch))
    if rank == 0:
        print(f"val loss {total[0] / total[1]:.5f}")
"""
FINITE = """\
        valid = torch.isfinite(loss.detach()).float()
        if world > 1:
            dist.all_reduce(valid)
        if valid != world:
            continue
"""
INTERLEAVED = """\
def interleaved(x, size):
    return x.reshape(size, -1, *x.shape[1:]).transpose(0, 1).reshape(-1, *x.shape[1:])


"""
MIXED = """\
def mixed(x, share=0.3):
    mine = x.clone()
    for i in range(len(x)):
        x[i] = (1 - share) * x[i] + share * mine[-1 - i]
    return x


"""
STEP = "        optimizer.zero_grad()\n"
SCRIPTS = {
    "progress lines within an evaluation": HEAD + LOOP + PROGRESS,
    "weights and optimizer in two files": HEAD + READ_TWO_FILES + LOOP + TWO_FILES,
    "data that are selected by their values": HEAD
    + "x = torch.randn(100, 4)\nx = x[x[:, 0] > 0][:40]\ndata = TensorDataset(x, x.sum(1, keepdim=True))\n"
    + LOOP,
    "samples that are objects with tensors": HEAD + OBJECTS + LOOP,
    "batches that are lists of views": HEAD
    + VIEWS
    + LOOP.replace(
        "    for a, b in loader:\n",
        "    for items in loader:\n        a, b = (torch.stack(parts) for parts in zip(*items))\n",
    ),
    "a batch that is fetched ahead": HEAD + AHEAD + LOOP.replace("in loader:", "in ahead(loader):"),
    "a batch sampler that drops the last batch": (HEAD + LOOP)
    .replace("sampler = DistributedSampler(data, world, rank)\n", OWN_SAMPLER)
    .replace("args.batch, sampler=sampler", "batch_sampler=BatchSampler(sampler, args.batch, drop_last=True)")
    .replace("    sampler.set_epoch(epoch)\n", "    if world > 1:\n        sampler.set_epoch(epoch)\n")
    .replace("randn(48, 4", "randn(60, 4"),
    "the rest of an evaluation on every rank": HEAD + "seen = Subset(data, range(45))\n" + LOOP + REST,
    "parts of a batch that are interleaved": (HEAD + INTERLEAVED + LOOP)
    .replace("Linear(4, 1)", "Sequential(torch.nn.Dropout(0.3), torch.nn.Linear(4, 1))")
    .replace("model(a)", "model(interleaved(a, 2))")
    .replace(", b)", ", interleaved(b, 2))"),
    "a vote of all ranks": HEAD + LOOP.replace(STEP, FINITE + STEP),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_idiom_that_is_right_is_not_accused(tmp_path: Path, name: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    status, report = judge(tmp_path, ["--batch-flag", "batch"], ["--batch", "8"])
    assert (status, report["status"]) == (0, "PASS"), report["conclusion"]


def test_samples_that_are_mixed_one_by_one_are_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        HEAD + MIXED + LOOP.replace("for a, b in loader:", "for a, b in loader:\n        a = mixed(a)")
    )
    status, report = judge(tmp_path, ["--batch-flag", "batch"], ["--batch", "8"])
    assert (status, report["status"]) == (3, "INCOMPLETE"), report["conclusion"]
    assert "mixed with each other one by one (train.py:" in report["conclusion"]


def test_a_loss_that_couples_samples_is_named_where_samples_are_mixed_too(tmp_path: Path) -> None:
    looked = "for a, b in loader:\n        apart = (a[0] - a[1]).abs().sum()"
    script = HEAD + LOOP.replace("for a, b in loader:", looked)
    loss = "loss = torch.nn.functional.mse_loss(model(a), b)\n"
    coupled = "out = model(a)\n        loss = 1 - (out * b).sum() / (out.square().sum() + b.square().sum())\n"
    assert loss in script
    (tmp_path / "train.py").write_text(script.replace(loss, coupled))
    status, report = judge(tmp_path, ["--batch-flag", "batch"], ["--batch", "8"])
    assert status == 1, report["conclusion"]
    assert "RF309" in {fault["cause"] for fault in report["faults"]}


# Numbers that are carried from batch to batch, before the loss of a batch of which each rank takes its own maximum.
CARRIED = {
    "a running loss": "        running = running + loss.detach() if number else loss.detach()\n",
    "a meter in place": "        meter.add_(loss.detach())\n",
    "a scale of what was seen": "        square = 0.9 * square + 0.1 * summed(b.square().mean()) / world\n"
    "        loss = loss / square.sqrt()\n",
    "running means of the features": "        mean = mean.lerp(summed(a.mean(0)) / world, 0.1)\n"
    "        loss = loss + (net.weight * mean).sum()\n",
}
SUMMED = """\
def summed(value):
    if world > 1:
        dist.all_reduce(value)
    return value


meter, square, mean = torch.zeros(()), torch.ones(()), torch.zeros(4)
"""
LOSS = "loss = torch.nn.functional.mse_loss(model(a), b)\n"
OF_OWN_MAXIMUM = "w = b.abs() / b.abs().max()\n        loss = (w * (model(a) - b).square()).mean()\n"


@pytest.mark.parametrize("name", with_further(CARRIED, *{*CARRIED} - {"running means of the features"}))
def test_what_is_carried_from_batch_to_batch_hides_no_fault(tmp_path: Path, name: str) -> None:
    sound = HEAD + SUMMED + LOOP.replace("for a, b in loader:", "for number, (a, b) in enumerate(loader):")
    sound = sound.replace(LOSS, LOSS + CARRIED[name])
    for script, expected in ((sound, 0), (sound.replace(LOSS, OF_OWN_MAXIMUM), 1)):
        (tmp_path / "train.py").write_text(script)
        status, report = judge(tmp_path, ["--batch-flag", "batch"], ["--batch", "8"])
        assert status == expected, report["conclusion"]
        notes = [verdict["note"] or "" for verdict in report["verdicts"] if verdict["check"] == "determinism"]
        assert not any("pairs its own samples" in note for note in notes)

"""`retrofit verify` names the `no_sync` that leaves gradients unaveraged, in trainings of several wrapped models."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
nets = [nn.Sequential(nn.Linear(a, 8), nn.Tanh(), nn.Linear(8, b)) for a, b in ((6, 4), (4, 6), (6, 1))]
encoder, decoder, critic = [DistributedDataParallel(net) for net in nets] if world > 1 else nets
data = TensorDataset(torch.randn(160, 6))
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=0.01)
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, 8 // world, sampler=sampler, shuffle=sampler is None, drop_last=True)


def without_sync(*models):
    stack = contextlib.ExitStack()
    for model in models if world > 1 else ():
        stack.enter_context(model.no_sync())
    return stack


def loss_of(scores, is_real):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))


for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for number, (x,) in enumerate(loader):
        with without_sync():  # encode
            code = encoder(x)
        with without_sync():  # decode
            made = decoder(code)
        critic_optimizer.zero_grad()
        with without_sync():  # judge
            scores = critic(torch.cat([x, made.detach()]))
        (loss_of(scores[: len(x)], 1) + loss_of(scores[len(x) :], 0)).backward()
        critic_optimizer.step()
        optimizer.zero_grad()
        with without_sync(critic):  # right: the critic is not trained by this
            judged = critic(made)
        ((made - x).pow(2).mean() + 0.1 * loss_of(judged, 1)).backward()
        optimizer.step()
if rank == 0:
    torch.save([net.state_dict() for net in nets], "nets.pt")
if world > 1:
    dist.barrier()
    dist.destroy_process_group()
"""
BY_HAND = "        if world > 1:\n            encoder.require_backward_grad_sync = epoch == 0\n"
EDITS = {
    "one of two models of an optimizer": [("without_sync():  # encode", "without_sync(encoder):  # encode")],
    "all models of an optimizer": [
        ("without_sync():  # encode", "without_sync(encoder):  # encode"),
        ("without_sync():  # decode", "without_sync(decoder):  # decode"),
    ],
    "the other optimizer's model": [("without_sync():  # judge", "without_sync(critic):  # judge")],
    "in every third step": [
        ("without_sync():  # decode", "without_sync(*[decoder] * (number % 3 == 2)):  # decode"),
    ],
    "a flag that is set by hand": [
        ("        with without_sync():  # encode\n", BY_HAND + "        with without_sync():  # encode\n")
    ],
}


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


FURTHER = ("one of two models of an optimizer", "the other optimizer's model", "in every third step")


@pytest.mark.parametrize("name", with_further(EDITS, *FURTHER))
def test_the_line_is_named(name: str, tmp_path: Path) -> None:
    text = SCRIPT
    for old, new in EDITS[name]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "train.py").write_text(text)
    status, report = judge(tmp_path, [], [])
    failed = {v["check"]: v for v in report["verdicts"] if v["status"] == "FAIL"}
    assert status == 1 and failed["ranks_agree"]["cause"] == "RF202", report["conclusion"]
    assert {verdict["cause"] for verdict in failed.values()} == {"RF202"}
    line = line_of(text, "code = encoder(x)" if "by hand" in name else "stack.enter_context")
    assert f"train.py:{line} in " in failed["ranks_agree"]["summary"]


def test_what_is_right_passes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    status, report = judge(tmp_path, [], [])
    assert status == 0, report["conclusion"]

"""`retrofit verify --precision as-is`: in the script's own fp32, bf16 or AMP and under torch.compile."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge
from verify_evidence import change, run_of, sound_runs

from retrofit.verify.checks import CheckOptions, run_checks
from retrofit.verify.checks.options import AS_IS
from retrofit.verify.trace.events import OptimizerStep

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=16)
parser.add_argument("--amp", default="off")
parser.add_argument("--compile", default="")
parser.add_argument("--hook", action="store_true")
parser.add_argument("--bug", default="")
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
features, labels = torch.randn(160, 8), torch.randint(0, 3, (160,))
features[:, 0] += labels
data = TensorDataset(features, labels)
net = nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3))
if args.compile == "before":
    net.compile()
model = DistributedDataParallel(net) if world > 1 else net
if args.hook and world > 1:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    model.register_comm_hook(None, bf16_compress_hook)
if args.compile == "after":
    model = torch.compile(model)
torch.manual_seed(rank)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
dtype = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.amp]
scaler = torch.amp.GradScaler("cpu", enabled=args.amp == "fp16", growth_interval=4)
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, args.batch_size, sampler=sampler, shuffle=sampler is None)
for epoch in range(2):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        on = dtype is not None and not (args.bug == "autocast" and rank == 1)
        with torch.autocast("cpu", dtype, enabled=on):
            loss = nn.functional.cross_entropy(model(x), y)
        if args.bug == "scaled" and scaler.is_enabled():
            (scaler.scale(loss) / scaler.get_scale() ** 0.1).backward()
        elif args.bug == "own" and world > 1:
            with model.no_sync():
                scaler.scale(loss).backward()
            if rank == 1 and epoch == 1:
                next(net.parameters()).grad[0, 0] = float("inf")
            scaler.unscale_(optimizer)
            for p in net.parameters():
                dist.all_reduce(p.grad.nan_to_num_(0, 0, 0))
                p.grad /= world
        else:
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
OPTIONS = ["--precision", "as-is", "--batch-flag", "batch_size"]


def apart(run, size):
    change(run, OptimizerStep, losses=lambda event: [loss * (1 + size) for loss in event.losses])


@pytest.mark.parametrize(("size", "fails"), [(4e-3, set()), (6e-3, {"loss"})])
def test_rounding_is_what_perturbed_runs_differ(size, fails):
    runs = sound_runs()
    for name in ("rounded", "rounded_again", "reordered"):
        runs[name] = run_of(name, replay=True)
    apart(runs["rounded"], 1e-3)
    for name in ("many", "resumed"):
        apart(runs[name], size)
    verdicts = run_checks(runs, CheckOptions(precision=AS_IS))
    assert {verdict.check for verdict in verdicts if verdict.status == "FAIL"} == fails


def failed(folder: Path, *arguments: str) -> set[str]:
    (folder / "train.py").write_text(SCRIPT)
    _, report = judge(folder, OPTIONS, ["--batch_size", "16", *arguments])
    return {verdict["check"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    "arguments",
    [
        ["--amp", "bf16", "--hook"],
        pytest.param(["--amp", "fp16"], marks=pytest.mark.slow),
        pytest.param(["--compile", "after"], marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_a_sound_script_passes(arguments, tmp_path):
    assert failed(tmp_path, *arguments) == set()


@pytest.mark.usefixtures("forked_python")
def test_a_scaler_that_skips_a_step_on_one_rank_is_found(tmp_path):
    assert "ranks_agree" in failed(tmp_path, "--amp", "fp16", "--bug", "own")

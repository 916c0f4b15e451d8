"""Optimizers that split their work over the ranks: DeepSpeed's ZeRO and torch's own are judged like any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os

import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

os.environ["DS_ACCELERATOR"] = "cpu"
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--stage", type=int, default=2)
args = parser.parse_args()
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.manual_seed(0)
x = torch.randn(64, 8)
data = TensorDataset(x, (x.sum(1) > 0).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8 // world, sampler=sampler)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(16, 2))
{optimizer}
for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        {step}
"""
DEEPSPEED = """\
import deepspeed

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled for minutes, and not used in training
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
config = {
    "train_micro_batch_size_per_gpu": 8 // world,
    "zero_optimization": {"stage": args.stage, "reduce_bucket_size": 10000},
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}
model, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)"""
DEEPSPEED_STEP = "model.backward(loss); model.step()"
TORCH = """\
from torch.distributed.optim import ZeroRedundancyOptimizer

model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)"""
TORCH_STEP = "optimizer.zero_grad(); loss.backward(); optimizer.step()"
STEPS = ["--nproc", "2", "--steps", "8"]
needs_deepspeed = pytest.mark.skipif(
    sys.version_info < (3, 10), reason="pyproject.toml installs deepspeed from Python 3.10 on"
)


def write(folder: Path, optimizer: str, step: str) -> None:
    text = SCRIPT.replace("{optimizer}", optimizer).replace("{step}", step)
    (folder / "train.py").write_text(text)


def statuses_of_training(report: dict) -> set[str]:
    compared = ("loss", "gradients", "parameters", "initial_state", "ranks_agree")
    return {verdict["status"] for verdict in report["verdicts"] if verdict["check"] in compared}


@needs_deepspeed
@pytest.mark.parametrize("stage", [pytest.param("2", marks=pytest.mark.slow), "3"])
def test_training_with_zero_is_compared(stage: str, tmp_path: Path) -> None:
    write(tmp_path, DEEPSPEED, DEEPSPEED_STEP)
    status, report = judge(tmp_path, STEPS, ["--epochs", "2", "--stage", stage])
    assert status == 0, report["conclusion"]
    assert statuses_of_training(report) == {"PASS"}
    assert len(report["curves"]["loss_1"]) == 8


@needs_deepspeed
def test_a_loss_that_is_scaled_under_zero_is_found(tmp_path: Path) -> None:
    write(tmp_path, DEEPSPEED, DEEPSPEED_STEP.replace("(loss)", "(loss / world)"))
    status, report = judge(tmp_path, STEPS, ["--epochs", "2", "--stage", "1"])
    assert status == 1 and list(report["causes"]) == ["RF301"], report["conclusion"]


def test_an_optimizer_that_is_built_on_another_makes_one_step(tmp_path: Path) -> None:
    """Each rank's inner optimizer holds a part of the weights; the outer one's step is the one that counts."""
    write(tmp_path, TORCH, TORCH_STEP)
    status, report = judge(tmp_path, STEPS, ["--epochs", "2"])
    assert status == 0, report["conclusion"]
    assert statuses_of_training(report) == {"PASS"}
    assert len(report["curves"]["loss_1"]) == 8


PART = "parts = [p for group in optimizer.optim.param_groups for p in group['params']]"
CLIPPED = {
    "the part that the optimizer updates": f"{PART}; torch.nn.utils.clip_grad_norm_(parts, 0.01)",
    "every second parameter": "torch.nn.utils.clip_grad_norm_(list(model.parameters())[rank::world], 0.01)",
}


@pytest.mark.parametrize("name", CLIPPED)
def test_gradients_that_each_rank_clips_a_part_of_are_named_so(name: str, tmp_path: Path) -> None:
    write(tmp_path, TORCH, TORCH_STEP.replace("optimizer.step()", f"{CLIPPED[name]}; optimizer.step()"))
    status, report = judge(tmp_path, STEPS, ["--epochs", "2"])
    assert status == 1 and list(report["causes"]) == ["RF216"], report["conclusion"]
    assert "clips another part of the averaged gradients" in report["conclusion"]


def test_gradients_of_a_micro_batch_that_each_rank_clips_are_not_averaged(tmp_path: Path) -> None:
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)"
    backward = "torch.nn.functional.cross_entropy(model(inputs), labels).backward()"
    flag = "model.require_backward_grad_sync"
    step = (
        f"optimizer.zero_grad(); loss.backward(); {clip}; {flag} = True; {backward}; optimizer.step(); {flag} = False"
    )
    write(tmp_path, f"{TORCH}\n{flag} = False", step)
    status, report = judge(tmp_path, STEPS, ["--epochs", "2"])
    assert status == 1 and "RF202" in report["causes"] and "RF216" not in report["causes"], report["conclusion"]

"""Weights that a script changes in place, without an optimizer, are compared like those of an optimizer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from verify_command import judge

from retrofit.verify.trace.computation.operators import OperatorTrace
from retrofit.verify.trace.computation.steps.by_hand import StepsByHand, leaves_of

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import os

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
points = torch.randn(64, 6)
data = TensorDataset(points, points.sum(1, keepdim=True))
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16 // world, sampler=sampler)
hidden = torch.nn.Linear(6, 8)
scale = torch.ones(8, requires_grad=True)  # in no module
weights = [*hidden.parameters(), scale]
speeds = [torch.zeros_like(weight) for weight in weights]
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = ((torch.tanh(hidden(x)) * scale).sum(1, keepdim=True) - y).pow(2).mean()
        loss.backward()
        for weight in weights:
            dist.all_reduce(weight.grad)
            weight.grad /= world
        with torch.no_grad():
            for weight, speed in zip(weights, speeds):
                speed.mul_(0.9).add_(weight.grad)
                weight -= 0.01 * speed
                weight.grad = None
        if rank == 0:
            print(f"norm {sum(weight.norm().item() for weight in weights):.6f}")
dist.destroy_process_group()
"""
AVERAGED = "            dist.all_reduce(weight.grad)\n            weight.grad /= world\n"
MISTAKES = {  # what is written instead, the check that fails, and what is said
    "gradients that stay each rank's own": (AVERAGED, "            pass\n", "RF201"),
    "a sum of gradients": ("            weight.grad /= world\n", "", "RF301"),
    "a step of another size": ("weight -= 0.01 * speed", "weight -= 0.01 * world * speed", "parameters"),
    "one weight alone is averaged": (
        "        for weight in weights:\n            dist",
        "        for weight in weights[:2]:\n            dist",
        "scale",
    ),
}


def test_steps_without_an_optimizer_are_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    _, report = judge(tmp_path, ["--nproc", "2"], [])
    assert report["status"] == "PASS", report["conclusion"]
    found = {verdict["check"]: verdict["status"] for verdict in report["verdicts"]}
    compared = ("initial_state", "loss", "gradients", "parameters", "ranks_agree")
    assert {found[check] for check in compared} == {"PASS"}
    assert len(report["curves"]["loss_1"]) == 8


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_such_steps_are_found(mistake: str, tmp_path: Path) -> None:
    right, wrong, said = MISTAKES[mistake]
    assert right in SCRIPT
    (tmp_path / "train.py").write_text(SCRIPT.replace(right, wrong))
    _, report = judge(tmp_path, ["--nproc", "2"], [])
    assert report["status"] == "FAIL", report["conclusion"]
    assert said in str([report["causes"], report["faults"]]), report["conclusion"]


def test_a_step_ends_before_the_script_continues() -> None:
    begun, ended, model = [], [], torch.nn.Linear(2, 1)
    steps = StepsByHand(begun.append, ended.append, lambda: [model])
    trace = OperatorTrace(lambda event: None, False, list)
    trace.writes = steps.watched
    loss = model(torch.ones(1, 2)).sum()
    with trace, torch.no_grad():
        model.weight.mul_(0.5)
        assert not begun, "before a backward call weights are made, not trained"
        steps.note_loss([loss])
        model.weight.data.add_(1.0)
        model.bias.data.add_(1.0)
        assert begun == [steps] and not ended
        steps.close()
        steps.close()
        model.weight.mul_(0.5)
    assert len(begun) == len(ended) == 1
    assert {id(one) for one in steps.param_groups[0]["params"]} == {id(model.weight), id(model.bias)}


def test_the_leaves_of_a_loss_are_found_once_each() -> None:
    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    found = list(leaves_of([(a * b + a).sum(), torch.ones(1)]))
    assert {id(one) for one in found} == {id(a), id(b)} and len(found) == 2

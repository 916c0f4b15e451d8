"""Gradients with respect to samples: those of a mean are as large as those of one process, where their size counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def attack(model, x, y, rate):
    delta = torch.zeros_like(x).requires_grad_(True)
    for _ in range(3):
        loss = F.cross_entropy(model(x + delta), y)
        loss.backward()
        delta.data = delta.data + STEP
        delta.grad.zero_()
    return (x + delta).detach()


loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.randint(0, 3, (16,))), batch_size=8)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    CHANGE
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
GRADIENT = "x.requires_grad_(); g = torch.autograd.grad(F.cross_entropy(model(x), y), x)[0]"
FACTOR = "rd.loss.part_of_mean("
BY_SIZE = {
    "gradient": f"{GRADIENT}; x = (x + g).detach()",
    "unpacked": "x.requires_grad_(); g, = torch.autograd.grad(F.cross_entropy(model(x), y), x); x = (x + g).detach()",
    "norm of all": (f"{GRADIENT}; x = (x + g * g.norm()).detach()"),
    "penalty": (f"{GRADIENT}; x = x + g.pow(2).sum(1).mean()"),
}
BY_DIRECTION = {
    "sign": "x + 0.1 * g.sign()",
    "function": "x + 0.1 * torch.sign(g)",
    "normalized": "x + F.normalize(g, dim=1)",
    "norm": "x + g / g.norm(dim=1, keepdim=True)",
    "norm with a small number": "x + g / (g.norm(dim=1, keepdim=True) + 1e-8)",
    "largest": "x + g / g.abs().amax(1, keepdim=True)",
    "where": "x + 0.1 * (g > 0).float()",
}
OTHER = {
    "sum": GRADIENT.replace(", y)", ", y, reduction='sum')") + "; x = (x + g).detach()",
    "of each sample": "x.requires_grad_(); g = torch.autograd.grad(model(x).sum(), x)[0]; x = (x + g).detach()",
}


def factors(folder: Path, change: str, step: str = "0.1 * delta.grad.sign()") -> int:
    lines = converted(folder, SCRIPT.replace("CHANGE", change).replace("STEP", step))
    return sum(FACTOR in line for line in lines)


@pytest.mark.parametrize("form", BY_SIZE)
def test_a_gradient_whose_size_counts_is_that_of_one_process(tmp_path: Path, form: str) -> None:
    assert factors(tmp_path, BY_SIZE[form]) == 1


@pytest.mark.parametrize("form", BY_DIRECTION)
def test_a_step_by_the_direction_stays(tmp_path: Path, form: str) -> None:
    change = f"{GRADIENT}; x = (STEP).detach()"
    assert factors(tmp_path, change.replace("STEP", BY_DIRECTION[form])) == 0


@pytest.mark.parametrize("form", OTHER)
def test_a_sum_over_the_batch_has_them_in_any_part_of_it(tmp_path: Path, form: str) -> None:
    assert factors(tmp_path, OTHER[form]) == 0


@pytest.mark.parametrize(
    ("step", "number"), [("delta.grad", 1), ("0.1 * delta.grad.sign()", 0), ("rate * delta.grad", 1)]
)
def test_an_attack_by_backward(tmp_path: Path, step: str, number: int) -> None:
    assert factors(tmp_path, "x = attack(model, x, y, 2.0)", step) == number


@pytest.mark.parametrize(("name", "number"), [("SGD", 1), ("Adam", 0)])
def test_an_optimizer_of_the_samples(tmp_path: Path, name: str, number: int) -> None:
    change = f"""\
delta = torch.zeros_like(x, requires_grad=True)
    inner = torch.optim.{name}([delta], lr=1.0)
    for _ in range(3):
        inner.zero_grad()
        (-F.cross_entropy(model(x + delta), y)).backward()
        inner.step()
    x = x + delta.detach()"""
    assert factors(tmp_path, change) == number


def test_where_the_weights_use_the_same_gradients_it_is_listed(tmp_path: Path) -> None:
    change = "delta = torch.zeros_like(x, requires_grad=True)\n    F.cross_entropy(model(x + delta), y).backward()"
    script = SCRIPT.replace("CHANGE", f"{change}\n    x = x + 2 * delta.grad").replace(
        "    optimizer.zero_grad()\n", ""
    )
    (finding,) = (f for f in conversion(tmp_path, script.replace("STEP", "0")).findings if f.code == "RF308")
    assert not finding.edits and "with respect to them" in finding.message

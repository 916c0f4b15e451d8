"""An evaluation in which something computes gradients, whatever switches them on, is run whole by every process."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.training import read_project

SCRIPT = """\
import torch
import torchattacks
import foolbox as fb
from advertorch.attacks import LinfPGDAttack
from torch import enable_grad, nn, optim
from torch.autograd import grad
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        FORWARD
        return self.layer(x)

model = Net()
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
train_loader, val_loader = DataLoader(data, 10, shuffle=True), DataLoader(data, 7)
attack = torchattacks.PGD(model)
fool = fb.attacks.LinfPGD()
adversary = LinfPGDAttack(model)

DEFINITIONS

@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    for x, y in loader:
        BODY
        correct += (model(x).argmax(1) == y).sum().item()
    return correct / 50

optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    print(evaluate(model, val_loader))
"""
PGD = """\
def pgd(x, y):
    CONTEXT
        x = x.clone().requires_grad_()
        loss = criterion(model(x), y)
        g = 0 * x
        DERIVE
    return x + g
"""
WITH_GRADIENTS = {
    "enable_grad": ("x = pgd(x, y)", PGD.replace("CONTEXT", "with torch.enable_grad():")),
    "imported": ("x = pgd(x, y)", PGD.replace("CONTEXT", "with enable_grad():")),
    "set_grad_enabled": ("x = pgd(x, y)", PGD.replace("CONTEXT", "with torch.set_grad_enabled(True):")),
    "set_grad_enabled(mode=)": ("x = pgd(x, y)", PGD.replace("CONTEXT", "with torch.set_grad_enabled(mode=True):")),
    "inference_mode(False)": ("x = pgd(x, y)", PGD.replace("CONTEXT", "with torch.inference_mode(False):")),
    "decorated": ("x = pgd(x, y)", "@torch.enable_grad()\n" + PGD.replace("CONTEXT", "if True:")),
    "decorated by name": ("x = pgd(x, y)", "@enable_grad()\n" + PGD.replace("CONTEXT", "if True:")),
    "backward": ("x = pgd(x, y)", PGD.replace("CONTEXT", "if True:").replace("DERIVE", "loss.backward()")),
    "autograd.grad": ("x = pgd(x, y)", PGD.replace("CONTEXT", "if 1:").replace("DERIVE", "g, = grad(loss, x)")),
    "backward in the loop": ("x.requires_grad_(); criterion(model(x), y).backward(); x = x + x.grad", ""),
    "in the loop": ("with torch.enable_grad(): model(x.requires_grad_()).sum()", ""),
    "two calls deep": (
        "x = outer(x, y)", PGD.replace("CONTEXT", "with enable_grad():") + "\ndef outer(x, y):\n    return pgd(x, y)\n",
    ),
    "torchattacks": ("x = attack(x, y)", ""),
    "foolbox": ("x = fool(model, x, y, epsilons=0.1)", ""),
    "advertorch": ("x = adversary.perturb(x, y)", ""),
    "jacobian": ("j = torch.autograd.functional.jacobian(model, x)", ""),
}  # fmt: skip
WITHOUT = {
    "plain": ("pass", ""),
    "a function": ("x = scaled(x)", "def scaled(x):\n    return x * 2\n"),
    "switched off": ("with torch.set_grad_enabled(False): x = x * 2", ""),
    "only elsewhere": ("pass", PGD.replace("CONTEXT", "with torch.enable_grad():")),
}


def evaluation_of(folder: Path, body: str, definitions: str, forward: str = "pass"):  # type: ignore[no-untyped-def]
    text = SCRIPT.replace("BODY", body).replace("DEFINITIONS", definitions.replace("DERIVE", "pass"))
    (folder / "train.py").write_text(text.replace("FORWARD", forward))
    (evaluation,) = read_project(folder / "train.py").evaluations
    return evaluation


@pytest.mark.parametrize(("body", "definitions"), WITH_GRADIENTS.values(), ids=WITH_GRADIENTS)
def test_an_evaluation_that_turns_gradients_on_is_recognised(body: str, definitions: str, tmp_path: Path) -> None:
    assert evaluation_of(tmp_path, body, definitions).reason.startswith("the model runs with gradients")


def test_a_model_that_computes_gradients_in_its_forward_is_recognised(tmp_path: Path) -> None:
    forward = "with torch.enable_grad(): torch.autograd.grad(self.layer(x.requires_grad_()).sum(), x)"
    assert evaluation_of(tmp_path, "pass", "", forward).reason.startswith("the model runs with gradients")


@pytest.mark.parametrize(("body", "definitions"), WITHOUT.values(), ids=WITHOUT)
def test_other_evaluations_are_split(body: str, definitions: str, tmp_path: Path) -> None:
    assert evaluation_of(tmp_path, body, definitions).reason == ""

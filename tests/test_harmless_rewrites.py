"""benchmarks/harmless_rewrites.py: each rewrite changes a script, and what the script prints stays the same."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from harmless_rewrites import CASES, REFUSED, SAME, Outcome, examine, report
from rewrites import REWRITES, rewritten

# Something to rewrite for each of them; it trains, in one process.
SCRIPT = '''\
"""A training of three steps."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

SEED = 1
scale, shift = 2.0, 0.5
double = lambda value: 2 * value


class Net(nn.Module):
    """One layer."""

    def __init__(self, width=4):
        """Build it."""
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, x):
        return self.layer(x)


def data(count):
    """Return samples."""
    names = [f"sample {number:02d}" for number in range(count)]
    values = []
    for row in range(count):
        values.append(float(row))
    print(len(names), names[0], sum(values))
    inputs = torch.linspace(0, 1, count * 4).reshape(count, 4)
    return TensorDataset(inputs, inputs.sum(1, keepdim=True) * scale + shift)


def evaluate(model, loader):
    with torch.no_grad():
        total = sum(model(inputs).sum().item() for inputs, _ in loader)
        print("sum {} of {}".format(round(total, 4), len(loader)))


def train(kind="plain", epochs=2):
    torch.manual_seed(SEED)
    loader = DataLoader(data(9), 3, num_workers=0, drop_last=False)
    model = Net()
    if kind == "plain":
        rate = 0.1
    elif kind == "slow":
        rate = 0.01
    else:
        rate = 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    criterion = nn.MSELoss(reduction="mean")
    for epoch in range(epochs):
        total = 0.0
        for step, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = criterion(outputs, targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
            print(f"step {step} {loss.item():.4f}")
        label = "last" if epoch == epochs - 1 else "not last"
        if total > 1:
            level = "high"
        else:
            level = "low"
        print(epoch, label, level, round(double(total), 4), abs(float(sum(model.state_dict()["layer.bias"]))) < 100)
    evaluate(model, loader)
    if epochs:
        print("trained")


if __name__ == "__main__":
    train(kind="plain")
'''


def printed(text: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(text, "script.py", "exec"), {"__name__": "__main__"})
    return output.getvalue()


@pytest.mark.parametrize("name", list(REWRITES))
@pytest.mark.skipif(sys.version_info < (3, 10), reason="the rewrites write match statements")
def test_a_rewritten_script_prints_the_same(name: str) -> None:
    changed = rewritten({"script.py": SCRIPT}, REWRITES[name])
    assert changed, f"{name} found nothing to rewrite"
    assert "step 2" in printed(SCRIPT)
    assert printed(changed["script.py"]) == printed(SCRIPT)


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the rewrites write match statements")
def test_a_rewritten_project_is_converted_as_before() -> None:
    case = next(case for case in CASES if case.name == "main_function")
    assert examine((case, "rename_functions", False)) == Outcome("main_function", "rename_functions", SAME)


def test_the_report_counts_what_changed() -> None:
    outcomes = [Outcome("one", "decorate", SAME), Outcome("two", "decorate", REFUSED, "train.py:3:1: RF003 a reason")]
    text = report(outcomes)
    assert text.startswith("1 of 2 (50.0%) the same; 0 other calls, 1 refused, 0 failed")
    assert "| decorate | 2 | 1 | 0 | 1 | 0 |" in text
    assert "- decorate, two: refused: train.py:3:1: RF003 a reason" in text

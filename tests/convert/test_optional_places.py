"""What a training can do without is refused when it runs, not before: branches, factories, tables, registries."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conversion import add_runtime, conversion

from retrofit.analysis.flow.optional import is_optional
from retrofit.training import read_project

REFUSE = "rd.process_group.one_process_only("
HEAD = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
"""
OPTIONS = """
parser = argparse.ArgumentParser()
parser.add_argument("--opt", default="sgd")
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
"""
TRAINING = """
for epoch in range(args.epochs):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
LBFGS = "torch.optim.LBFGS(model.parameters(), lr=0.1)"
SGD = "torch.optim.SGD(model.parameters(), lr=0.1)"
BRANCH = f"""
if args.opt == "lbfgs":
    optimizer = {LBFGS}
else:
    optimizer = {SGD}
"""
EXPRESSION = f'optimizer = {LBFGS} if args.opt == "lbfgs" else {SGD}\n'
FACTORY = """
def build(name, params):
    if name == "sgd":
        return torch.optim.SGD(params, lr=0.1)
    return torch.optim.LBFGS(params, lr=0.1)


optimizer = build(args.opt, model.parameters())
"""
TABLE = """
OPTIMIZERS = {"sgd": torch.optim.SGD, "lbfgs": torch.optim.LBFGS}
optimizer = OPTIMIZERS[args.opt](model.parameters(), lr=0.1)
"""
LAMBDAS = """
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1),
    "lbfgs": lambda params: torch.optim.LBFGS(params, lr=0.1),
}
optimizer = OPTIMIZERS[args.opt](model.parameters())
"""
REGISTRY = """
def sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def lbfgs(params):
    return torch.optim.LBFGS(params, lr=0.1)


optimizer = {"sgd": sgd, "lbfgs": lbfgs}[args.opt](model.parameters())
"""
CHOSEN_CLASS = """
cls = torch.optim.SGD
if args.opt == "lbfgs":
    cls = torch.optim.LBFGS
optimizer = cls(model.parameters(), lr=0.1)
"""
MATCH = f"""
match args.opt:
    case "lbfgs":
        optimizer = {LBFGS}
    case _:
        optimizer = {SGD}
"""
CHOICES = {
    "branch": BRANCH,
    "expression": EXPRESSION,
    "factory": FACTORY,
    "table": TABLE,
    "lambdas": LAMBDAS,
    "registry": REGISTRY,
    "chosen class": CHOSEN_CLASS,
}


@pytest.mark.parametrize("choice", CHOICES.values(), ids=CHOICES)
def test_an_optimizer_under_an_option_does_not_refuse_the_script(choice: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, HEAD + OPTIONS + choice + TRAINING)
    assert [finding.refusal for finding in result.refusals] == []
    (file,) = result.files
    (line,) = (line for line in file.text.splitlines() if REFUSE in line)
    assert "LBFGS evaluates the loss several times per step" in line
    assert "rd.distribute_loader(loader)" in file.text and "rd.distribute_model(model)" in file.text


@pytest.mark.skipif(sys.version_info < (3, 10), reason="match is new in Python 3.10")
def test_a_case_is_a_branch(tmp_path: Path) -> None:
    (file,) = conversion(tmp_path, HEAD + OPTIONS + MATCH + TRAINING).files
    assert REFUSE in file.text


@pytest.mark.parametrize(
    "choice",
    [
        f"optimizer = {LBFGS}\n",
        f"if True:\n    print(1)\noptimizer = {LBFGS}\n",
        f"def build():\n    return {LBFGS}\n\n\noptimizer = build()\n",
        f"def build():\n    if args.opt:\n        print('!')\n    return {LBFGS}\n\n\noptimizer = build()\n",
    ],
)
def test_what_every_training_runs_is_refused(choice: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, HEAD + OPTIONS + choice + TRAINING)
    assert [finding.kind for finding in result.refusals] == ["repeated-evaluation"]


def test_a_branch_that_holds_the_training_is_refused(tmp_path: Path) -> None:
    body = f"optimizer = {LBFGS}\n{TRAINING.strip()}\n".replace("\n", "\n    ")
    result = conversion(tmp_path, f"{HEAD}{OPTIONS}if args.epochs:\n    {body}\n")
    assert [finding.kind for finding in result.refusals] == ["repeated-evaluation"]


def test_what_is_not_reached_is_not_refused(tmp_path: Path) -> None:
    unused = f"\ndef unused():\n    return {LBFGS}\n\n\noptimizer = {SGD}\n"
    result = conversion(tmp_path, HEAD + OPTIONS + unused + TRAINING)
    assert not result.refusals and REFUSE not in result.files[0].text


OTHERS = {
    "a search": (
        """
import wandb

if args.opt == "sweep":
    wandb.agent("sweep", function=print)
criterion = lambda z: z.pow(2).mean()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
""",
        '    wandb.agent("sweep", function=print)',
    ),
}


@pytest.mark.parametrize(("choice", "line"), OTHERS.values(), ids=OTHERS)
def test_other_kinds_are_refused_where_they_run(choice: str, line: str, tmp_path: Path) -> None:
    training = TRAINING.replace("model(x).pow(2).mean()", "criterion(model(x))")
    result = conversion(tmp_path, HEAD + OPTIONS + choice + training)
    assert [finding.refusal for finding in result.refusals] == []
    lines = result.files[0].text.splitlines()
    (number,) = (number for number, one in enumerate(lines) if REFUSE in one)
    assert lines[number + 1].startswith(line)


def test_a_closure_that_another_branch_does_without(tmp_path: Path) -> None:
    step = """\
        if args.opt == "lbfgs":
            def closure():
                loss = model(x).pow(2).mean()
                loss.backward()
                return loss
            optimizer.step(closure)
        else:
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
"""
    training = TRAINING.partition("        loss =")[0] + step
    result = conversion(tmp_path, HEAD + OPTIONS + BRANCH + training)
    assert not result.refusals and REFUSE in result.files[0].text


def test_a_node_in_a_branch_is_optional_and_one_next_to_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HEAD + OPTIONS + BRANCH + TRAINING)
    project = read_project(tmp_path / "train.py")
    ways = [[frame.node for frame in path.frames] for path in project.paths]
    scope = project.analysis.module_scopes[project.entry]
    optional = {node for node in project.entry.nodes if is_optional(project.analysis, node, scope, ways)}
    calls = {project.entry.segment(node) for node in optional}
    assert {LBFGS, SGD} <= calls
    assert "parser.parse_args()" not in calls and "loss.backward()" not in calls


@pytest.mark.usefixtures("forked_python")
def test_one_process_runs_it_and_several_say_why_not(tmp_path: Path) -> None:
    (file,) = conversion(tmp_path, HEAD + OPTIONS + EXPRESSION + TRAINING + "print('done', loss.item() >= 0)\n").files
    file.path.write_text(file.text)
    add_runtime(tmp_path)
    torchrun = [str(shutil.which("torchrun")), "--standalone", "--nproc_per_node=2"]
    for launcher, choice, is_good in (
        ([sys.executable], "sgd", True),
        (torchrun, "sgd", True),
        (torchrun, "lbfgs", False),
    ):
        run = subprocess.run(
            [*launcher, "train.py", "--opt", choice], cwd=tmp_path, capture_output=True, text=True, timeout=300,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert (run.returncode == 0) is is_good, run.stdout + run.stderr
        assert ("done True" in run.stdout) is is_good
    assert "LBFGS evaluates the loss several times per step, which ranks would do unequally, and 2 processes were" in (
        run.stderr
    )
    assert "start this in one process, without a launcher, or choose another option" in run.stderr

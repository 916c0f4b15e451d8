"""`retrofit verify --fix`: the edits that are proposed for a fault, and repairs that `verify` itself has proven."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from verify.bugs.catalogue import BUGS, seed_bug

from retrofit.prove.repair.candidates import changes_for
from retrofit.prove.repair.guard import is_better, removes_output
from retrofit.training.launch.entry import open_project
from retrofit.verify.report.faults import Fault
from retrofit.verify.verdict import failed, not_applicable, passed

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """\
import os
import random
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main(args, train_set, val_set, net):
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    distributed = world_size > 1
    if distributed:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    torch.manual_seed(args.seed + rank)
    sampler = DistributedSampler(train_set) if distributed else None
    loader = DataLoader(train_set, 8, sampler=sampler, shuffle=sampler is None)
    val_loader = DataLoader(torch.utils.data.Subset(val_set, range(rank, len(val_set), world_size)), 8)
    model = net
    if distributed:
        model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    start = 0
    if args.resume:
        content = torch.load(args.resume, map_location="cpu")
        net.load_state_dict(content["model"])
        optimizer.load_state_dict(content["optimizer"])
        start = content["epoch"]
    for epoch in range(start, args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right, count = torch.zeros(1), 0
        for x, y in val_loader:
            right += (net(x).argmax(1) == y).sum()
            count += len(y)
        if distributed:
            dist.all_reduce(right)
        if rank == 0:
            print(epoch, right / len(val_set))
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
"""
# The code, what is changed in SCRIPT, and the line that a repair writes (or, with a "-", takes out).
REPAIRS = [
    ("RF101", "            sampler.set_epoch(epoch)\n", "            pass\n", "            sampler.set_epoch(epoch)"),
    ("RF103", "DistributedSampler(train_set)", "DistributedSampler(train_set, seed=rank)", "seed=0"),
    (
        "RF108",
        "torch.manual_seed(args.seed)\n",
        "torch.manual_seed(args.seed + rank)\n",
        "torch.manual_seed(args.seed)",
    ),
    (
        "RF108",
        "    distributed = world_size > 1\n",
        "    distributed = world_size > 1\n    names = list(set(args.names))\n",
        "    names = list(sorted(set(args.names)))",
    ),
    (
        "RF108",
        "    start = 0\n",
        "    start = 0\n    random.shuffle(args.files)\n",
        "random.Random(0).shuffle(args.files)",
    ),
    (
        "RF109",
        "    torch.manual_seed(args.seed + rank)\n",
        "    torch.manual_seed(args.seed)\n",
        "torch.manual_seed(args.seed + rank)",
    ),
    (
        "RF111",
        "DataLoader(torch.utils.data.Subset(val_set, range(rank, len(val_set), world_size)), 8)",
        "DataLoader(val_set, 8, sampler=DistributedSampler(val_set, shuffle=False))",
        "DataLoader(torch.utils.data.Subset(val_set, range(rank, len(val_set), world_size)), 8)",
    ),
    ("RF201", "cross_entropy(model(x), y)", "cross_entropy(model.module(x), y)", "cross_entropy(model(x), y)"),
    ("RF209", "    if distributed:\n        model = DDP(net)\n", "", "        model = DDP(model)"),
    ("RF301", "loss.backward()", "(loss * world_size).backward()", "            loss.backward()"),
    (
        "RF301",
        "            optimizer.step()\n",
        "            if distributed:\n                for w in net.parameters():\n"
        "                    dist.all_reduce(w.grad)\n"
        "            optimizer.step()\n",
        "-                    dist.all_reduce(w.grad)",
    ),
    ("RF304", "lr=args.lr", "lr=args.lr * world_size", "lr=args.lr)"),
    (
        "RF401",
        "        if distributed:\n            dist.all_reduce(right)\n",
        "",
        "            dist.all_reduce(right)",
    ),
    (
        "RF402",
        "        if distributed:\n            dist.all_reduce(right)\n",
        "        if distributed and rank == 0:\n            dist.all_reduce(right)\n",
        "        if distributed:",
    ),
    (
        "RF402",
        "            print(epoch",
        "            if distributed:\n                dist.barrier()\n            print(epoch",
        "\n        if distributed:\n            dist.barrier()",
    ),
    (
        "RF501",
        "        if rank == 0:\n            print",
        "        torch.save(epoch, 'epoch.pt')\n        if rank == 0:\n            print",
        "            torch.save(epoch, 'epoch.pt')",
    ),
    ("RF502", "net.state_dict()", "model.state_dict()", 'getattr(model, "module", model).state_dict()'),
    ("RF503", ', map_location="cpu"', "", 'map_location="cpu"'),
    ("RF504", "    start = 0\n", "    start = 0\n    os.makedirs('out')\n", "        os.makedirs('out')"),
    (
        "RF507",
        '        optimizer.load_state_dict(content["optimizer"])\n',
        "",
        '        optimizer.load_state_dict(content["optimizer"])',
    ),
    (
        "RF509",
        "    start = 0\n",
        "    start = 0\n    args.out = time.strftime('%H%M%S')\n",
        "        dist.broadcast_object_list(names)",
    ),
    (
        "RF602",
        "    start = 0\n",
        "    start = 0\n    os.environ['MASTER_PORT'] = '29500'\n",
        "    os.environ.setdefault('MASTER_PORT', '29500')",
    ),
]


def proposed(folder: Path, text: str, code: str, check: str = "gradients") -> list[str]:
    """Return the texts of train.py after each of the first edits that are proposed for a fault."""
    (folder / "train.py").write_text(text)
    project, _ = open_project(str(folder / "train.py"))
    changes = list(changes_for(project, Fault(failed(check, "", "", cause=code)), ""))
    return [change.files[0].text for change in changes[:4]]


@pytest.mark.parametrize(
    ("code", "old", "new", "line"), REPAIRS, ids=lambda value: value[:5] if value[:2] == "RF" else ""
)
def test_an_edit_is_proposed(tmp_path, code, old, new, line):
    assert SCRIPT.count(old) >= 1
    broken = SCRIPT.replace(old, new)
    texts = proposed(tmp_path, broken, code)
    if line.startswith("-"):
        assert any(line[1:] not in text for text in texts)
    else:
        assert any(text.count(line) > broken.count(line) for text in texts), texts
    for text in texts:
        ast.parse(text)


@pytest.mark.parametrize(
    ("code", "old", "new", "line"), REPAIRS, ids=lambda value: value[:5] if value[:2] == "RF" else ""
)
def test_every_other_line_stays(tmp_path, code, old, new, line):
    broken = SCRIPT.replace(old, new)
    for text in proposed(tmp_path, broken, code):
        lines = {one.strip() for one in text.splitlines()}
        lost = [one for one in broken.splitlines() if one.strip() and one.strip() not in lines]
        assert len(lost) <= 3, lost


def test_no_edit_takes_out_what_is_printed_or_evaluated():
    before = ast.parse("print(evaluate(model))\nmodel.eval()")
    assert removes_output(before, ast.parse("print(1)\nmodel.eval()"))
    assert removes_output(before, ast.parse("evaluate(model)\nmodel.eval()"))
    assert not removes_output(before, ast.parse("if rank == 0:\n    print(evaluate(model))\nmodel.eval()"))


def test_a_check_has_to_stay_judged():
    wrong, right = failed("metrics", "", "", cause="RF401"), passed("metrics", "", "")
    other = passed("loss", "", "")
    assert is_better([wrong, other], [right, other], ["metrics"])
    assert not is_better([wrong, other], [not_applicable("metrics", "", ""), other], ["metrics"])
    assert not is_better([wrong, other], [right, not_applicable("loss", "", "")], ["metrics"])
    assert not is_better([wrong, other], [right, failed("loss", "", "")], ["metrics"])


def fix(script: Path, arguments: list[str], *options: str) -> tuple[int, dict]:
    command = [sys.executable, "-m", "retrofit", "verify", "train.py", "--fix", "--json", "--html", "", *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--", *arguments], cwd=script.parent, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    return done.returncode, json.loads(done.stdout)["repair"]


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", ["26c", *(pytest.param(name, marks=pytest.mark.slow) for name in ("08", "17", "25b"))])
def test_a_seeded_bug_is_repaired(tmp_path, name):
    bug = next(bug for bug in BUGS if bug.id == name)
    script = seed_bug(bug, tmp_path / "project")
    text = script.read_text()
    _, repair = fix(script, bug.arguments)
    assert repair["status_after"] == "PASS" and repair["faults"][0]["repaired"]
    assert repair["diff"].startswith("--- a/train.py\n+++ b/train.py\n")
    assert not repair["written"] and script.read_text() == text


@pytest.mark.usefixtures("forked_python")
def test_write_changes_the_file(tmp_path):
    bug = next(bug for bug in BUGS if bug.id == "17")
    script = seed_bug(bug, tmp_path / "project")
    _, repair = fix(script, bug.arguments, "--write")
    assert repair["written"] and "            loss.backward()\n" in script.read_text()
    assert not list(script.parent.glob(".train.py*"))


@pytest.mark.usefixtures("forked_python")
@pytest.mark.slow  # each edit is tried in a copy of its own
def test_what_is_not_repaired_says_why_not(tmp_path):
    bug = next(bug for bug in BUGS if bug.id == "26d")
    script = seed_bug(bug, tmp_path / "project")
    _, repair = fix(script, bug.arguments, "--write")
    assert not repair["written"] and repair["diff"] == ""
    assert repair["faults"][0]["why_not"] and repair["faults"][0]["remedy"]


def test_write_without_fix_is_refused(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent("print(1)"))
    command = [sys.executable, "-m", "retrofit", "verify", "train.py", "--write"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--fix" in done.stderr

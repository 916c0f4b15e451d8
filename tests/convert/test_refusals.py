"""Refusals help: every kind is explained, and each example is run before and after, in one process and in two."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from further_cases import with_further
from test_rules import script_of

from retrofit.analysis.edits import apply_edits
from retrofit.cli import main
from retrofit.rules.refusals import worked_examples
from retrofit.rules.refusals.help import PATCHES, patch_for
from retrofit.rules.refusals.kinds import KINDS, WITHOUT_LINES, Kind
from retrofit.rules.refusals.worked_examples import path_of
from retrofit.rules.registry import RULES, find_all
from retrofit.training import read_project

ROOT = Path(__file__).resolve().parents[2]
NAMES = sorted({name for kind in KINDS.values() for name in kind.examples})


def output_of(script: Path, folder: Path, processes: int = 1) -> list[str]:
    torchrun = [str(shutil.which("torchrun")), "--standalone", f"--nproc_per_node={processes}"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "RETROFIT_BATCH": "global"}
    environ["PYTHONPATH"] = str(ROOT)
    command = [*([sys.executable] if processes == 1 else torchrun), str(script)]
    run = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr
    return [line for line in run.stdout.splitlines() if not line.startswith("notice:")]


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("name", with_further(NAMES, *NAMES[1::2]))
def test_an_example_trains_the_same_in_one_process_and_in_two(name: str, tmp_path: Path) -> None:
    before = output_of(path_of(name, "before"), tmp_path)
    assert len(before) >= 4
    assert output_of(path_of(name, "after"), tmp_path) == before, "one process trains as before, to the last digit"
    two = output_of(path_of(name, "after"), tmp_path, processes=2)
    numbers = [[float(word) for word in re.findall(r"-?\d+\.\d+", " ".join(lines))] for lines in (before, two)]
    assert len(two) == len(before)
    assert numbers[1] == pytest.approx(numbers[0], abs=2e-4)


def test_the_page_of_examples_is_current() -> None:
    page = ROOT / "docs" / "refusals.md"
    assert page.read_text(encoding="utf-8") == worked_examples.page(), "run python docs/make_rules.py"


def test_every_example_belongs_to_a_refusal_and_is_there() -> None:
    assert sorted(worked_examples.EXAMPLES) == NAMES
    files = {path.name for path in worked_examples.FOLDER.glob("*/*.py")} - {"__init__.py"}
    assert files == {path_of(name, which).name for name in NAMES for which in ("before", "after")}
    folders = {path_of(name, "before").parent.name for name in NAMES}
    assert sorted(folders) == sorted(worked_examples.SUBJECTS)


def test_every_kind_has_lines_to_write_or_needs_none() -> None:
    helped = {kind.name for kind in KINDS.values() if kind.examples} | set(PATCHES)
    assert helped & set(WITHOUT_LINES) == set()
    assert helped | set(WITHOUT_LINES) == set(KINDS)


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_refused_and_the_refusal_names_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["convert", str(path_of(name, "before"))])
    said = capsys.readouterr().err
    assert f"a worked example, before and after: retrofit rules {name}\n" in said
    assert status == 1 or "several processes end with an error here" in said
    assert main(["rules", name]) == 0
    assert "rd.setup_distributed()" in capsys.readouterr().out


def test_every_refusal_of_the_rules_examples_has_a_kind(tmp_path: Path) -> None:
    for rule in RULES.values():
        for number, example in enumerate(rule.INVALID):
            script = tmp_path / f"{rule.RULE.code}_{number}.py"
            script.write_text(script_of(rule.RULE.code, example))
            refused = [f for f in find_all(read_project(script)) if f.refusal]
            assert [f for f in refused if f.kind not in KINDS] == [], (
                "give it a kind of retrofit/rules/refusals/kinds.py"
            )
            assert all(KINDS[f.kind].code == f.code for f in refused)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_kind_is_explained_by_its_rule(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", kind.code]) == 0
    said = capsys.readouterr().out
    assert f"`{kind.name}`" in said and kind.remedy in said


HEAD = """\
import contextlib

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
"""
MODEL = "model = nn.Linear(3, 1)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
PATCHED = {
    "removed-next": """
batches = iter(loader)
for step in range(4):
    (x,) = batches.next()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
""",
    "training-comprehension": """
def step(x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


for epoch in range(2):
    total = sum([step(x) for (x,) in loader if len(x) > 1])
    print(total / len(loader))
""",
    "closure-step": """
for (x,) in loader:

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
print("done")
""",
    "data-parallel-call": """
def run(inputs):
    return nn.parallel.data_parallel(model, inputs)


for number, (x,) in enumerate(loader):
    optimizer.zero_grad()
    run(x if number else (x,)).pow(2).mean().backward()
    optimizer.step()
""",
    "batch-buffer": """
size = 4
loader = DataLoader(TensorDataset(torch.randn(18, 3)), size)
inputs = torch.zeros(size, 3)
for (x,) in loader:
    optimizer.zero_grad()
    model(inputs.copy_(x)).pow(2).mean().backward()
    optimizer.step()
""",
    "rate-search": """
from torch_lr_finder import LRFinder

finder = LRFinder(model, optimizer, nn.MSELoss())
finder.range_test(DataLoader(loader.dataset, 8), end_lr=1, num_iter=20)
finder.reset()
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
""",
    "suppressed-errors": """
for (x,) in loader:
    with contextlib.suppress(RuntimeError):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
""",
    "model-in-write": """
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    nothing = torch.save(model(x).detach(), "last.pt")
""",
}


def test_each_patch_is_tested() -> None:
    assert set(PATCHED) == set(PATCHES)


@pytest.mark.parametrize("kind", PATCHED)
def test_a_script_is_converted_once_its_patch_is_applied(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(HEAD + MODEL + PATCHED[kind])
    assert main(["convert", str(script)]) == 1
    said = capsys.readouterr().err
    assert "this change makes it convertible:" in said
    removed = [line.strip()[1:] for line in said.splitlines() if line.startswith("      -")]
    assert removed and all(line in script.read_text() for line in removed)
    project = read_project(script)
    (finding,) = (finding for finding in find_all(project) if finding.kind == kind)
    edits = patch_for(project, finding)
    script.write_text(apply_edits(edits[0].source, edits))
    assert main(["convert", str(script)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    [
        "losses = [step(x) for (x,) in loader]",
        "total = sum(step(x) for (x,) in loader)",
        "losses = {n: step(x) for n, (x,) in enumerate(loader)}",
        "losses = list(step(*batch) for batch in loader)",
    ],
)
def test_a_comprehension_that_trains_is_refused_as_one(line: str, tmp_path: Path) -> None:
    head, _, _ = PATCHED["training-comprehension"].partition("for epoch")
    (tmp_path / "train.py").write_text(HEAD + MODEL + head + f"for epoch in range(2):\n    {line}\n")
    project = read_project(tmp_path / "train.py")
    (finding,) = (finding for finding in find_all(project) if finding.refusal)
    assert finding.kind == "training-comprehension"
    edits = patch_for(project, finding)
    assert bool(edits) == ("{" not in line)
    if edits:
        (tmp_path / "train.py").write_text(apply_edits(edits[0].source, edits))
        assert not [finding for finding in find_all(read_project(tmp_path / "train.py")) if finding.refusal]

"""`retrofit convert --prove`: what runs show to be the same training is written, and nothing else is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conversion import conversion

from retrofit.cli import main
from retrofit.convert.assumptions import lines_after
from retrofit.convert.plan import plan_conversion
from retrofit.prove.command import _require_unchanged
from retrofit.prove.responsible import MADE_BY, changes_for, changes_of
from retrofit.training import read_project
from retrofit.verify.checks import CHECKS
from retrofit.verify.processes.project_copy import own_folder
from retrofit.verify.verdict import failed

ROOT = Path(__file__).resolve().parents[2]
DATA = """\
import torch
from torch.utils.data import DataLoader, TensorDataset


def loader_of(size):
    return DataLoader(TensorDataset(torch.randn(16, 3)), size, shuffle=True)
"""
SCRIPT = """\
import argparse

import torch
from data import loader_of

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--reduction", default="mean")
args = parser.parse_args()
torch.manual_seed(0)
loader = loader_of(4)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(args.epochs):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = getattr(model(x).pow(2), args.reduction)()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
torch.save(model.state_dict(), "model.pt")
"""
COMMAND = "import sys; del sys.path[0]; from retrofit.cli import main; sys.exit(main())"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "data.py").write_text(DATA)
    (tmp_path / "temporary").mkdir()
    return folder


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def line_of(text: str, script: str = SCRIPT) -> str:
    """Return the place of a line of the script, as messages have it."""
    return f"train.py:{script[: script.index(text)].count(chr(10)) + 1}"


def folders_of_runs(project: Path) -> list[Path]:
    return list((project.parent / "temporary").glob("retrofit-*"))  # torch leaves an empty one of its own


def started(project: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the command as it is installed: without the current folder on its search path."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environ["TMPDIR"] = str(project.parent / "temporary")
    command = [sys.executable, "-c", COMMAND, "convert", "train.py", "--prove", *arguments]
    return subprocess.Popen(
        command, cwd=project, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def ended(project: Path, *arguments: str) -> tuple[int, str]:
    process = started(project, *arguments)
    out, errors = process.communicate(timeout=300)
    assert folders_of_runs(project) == []
    return process.returncode, out + errors


@pytest.mark.usefixtures("forked_python")
def test_what_is_proven_is_written(project: Path) -> None:
    status, said = ended(project)
    assert status == 0, said
    assert "2 processes train the same model as 1" in said and "wrote 6 files" in said
    assert re.search(r"PASS +on one process the script", said), "the original was run, too"
    assert f"assumed, and shown by the runs: {line_of('loss.backward()')}: the loss is a mean over" in said
    assert "rd.distribute_loader" in (project / "train.py").read_text()
    assert not (project / "model.pt").exists()
    assert "rank 0's own share" not in said, "the loss is reduced where it is printed"


@pytest.mark.usefixtures("forked_python")
def test_figures_that_the_runs_show_to_be_a_share_are_said(project: Path) -> None:
    own = "    print(f'epoch {epoch} mean {getattr(x, args.reduction)().item():.6f}')\n"
    (project / "train.py").write_text(SCRIPT.replace("    print(epoch, loss.item())\n", own))
    status, said = ended(project)
    assert status == 0, said
    words = " ".join(said.split())
    assert re.search(r"rank 0's own share, not the figure of one process: the printed mean at train\.py:\d+ in ", words)
    assert "with 2 processes" in words


@pytest.mark.usefixtures("forked_python")
def test_the_runs_start_in_the_folder_where_the_command_is(project: Path) -> None:
    folder = project / "scripts"
    for path in (folder, project / "temporary"):
        path.mkdir()
    (project / "data.py").rename(folder / "data.py")
    (folder / "rate.txt").write_text("0.1")
    resumes = SCRIPT.replace("lr=0.1", "lr=float(open('rate.txt').read())").replace(
        "torch.save(model.state_dict(), ", "    torch.save({'model': model.state_dict(), 'epoch': epoch}, "
    )
    resumes = resumes.replace("args = parser", "parser.add_argument('--resume', default='')\nargs = parser")
    resumes = resumes.replace("for epoch in", "start = 0\nif args.resume:\n    state = torch.load(args.resume)\n"
        "    start = state['epoch'] + 1\n    model.load_state_dict(state['model'])\nfor epoch in").replace(
        "range(args.epochs)", "range(start, args.epochs)")  # fmt: skip
    (folder / "train.py").write_text(resumes)
    status, said = ended(folder, "--root", "..")
    assert "checkpoint of several" in " ".join(said.split())
    assert status == 0, said
    assert "rd.distribute_loader" in (folder / "train.py").read_text()


@pytest.mark.usefixtures("forked_python")
def test_a_failed_check_names_the_edit_and_nothing_is_written(project: Path) -> None:
    before = texts(project)
    status, said = ended(project, "--", "--reduction", "sum")
    assert status == 1, said
    assert "from step 0 on). 3 of 27 checks failed" in said
    assert f"assumed, and it does not hold: {line_of('loss.backward()')}: the loss is a mean over" in said
    assert "loss, gradients and parameters: " in said
    assert ": RF209 model-not-wrapped" in said and "    +model = rd.distribute_model(model)" in said
    assert "train.py was not written: the converted script trains something else" in said
    assert texts(project) == before


UNCERTAIN = SCRIPT.replace(
    """        loss = getattr(model(x).pow(2), args.reduction)()
""",
    """        if x.abs().max() > args.most:
            continue
        z = model(x)
        pairs = z @ z.t()
        loss = pairs.diagonal().mean() + args.contrast * pairs.pow(2).mean()
""",
).replace(
    'parser.add_argument("--reduction", default="mean")',
    """parser.add_argument("--most", type=float, default=9.0)
parser.add_argument("--contrast", type=float, default=0.0)""",
)


def test_what_is_uncertain_is_refused_without_a_proof(tmp_path: Path) -> None:
    refused = conversion(tmp_path, UNCERTAIN, data=DATA)
    assert {finding.kind for finding in refused.refusals} == {"skipped-by-batch", "in-batch-loss"}
    assert refused.assumptions == []
    assumed = plan_conversion(read_project(tmp_path / "train.py"), assume=True)
    assert not assumed.refusals
    said = [f"{one.text} {lines_after(assumed.files, one)}" for one in assumed.assumptions]
    lines = assumed.files[0].text.splitlines()
    skips, compares = lines.index("            continue") + 1, lines.index("        pairs = z @ z.t()") + 1
    assert said == [
        f"all ranks leave out the same steps ({skips},)",
        f"the loss uses no comparison of one sample with another one ({compares},)",
    ]


@pytest.mark.usefixtures("forked_python")
def test_an_assumption_that_no_run_came_to_is_listed_as_not_proven(project: Path) -> None:
    (project / "train.py").write_text(UNCERTAIN)
    status, said = ended(project)
    assert status == 0, said
    assert (
        f"assumed, and shown by the runs: {line_of('pairs = z @ z.t()', UNCERTAIN)}: the loss uses no comparison"
        in said
    )
    assert (
        f"assumed, and not proven, the runs did not come to it: {line_of('if x.abs()', UNCERTAIN)}: all ranks leave"
        in said
    )
    page = (project / "MULTI_GPU.md").read_text()
    assert "- **Assumed, not proven.**" in page
    assert f"`{line_of('if x.abs()', UNCERTAIN)}` (before the conversion): all ranks leave out the same steps" in page


@pytest.mark.usefixtures("forked_python")
def test_an_assumption_that_does_not_hold_is_named_and_nothing_is_written(project: Path) -> None:
    (project / "train.py").write_text(UNCERTAIN)
    before = texts(project)
    status, said = ended(project, "--", "--contrast", "1")
    assert status == 1, said
    assert (
        f"assumed, and it does not hold: {line_of('pairs = z @ z.t()', UNCERTAIN)}: the loss uses no comparison" in said
    )
    assert (
        f"assumed, and it may not hold: {line_of('if x.abs()', UNCERTAIN)}: all ranks leave out the same steps" in said
    )
    assert texts(project) == before


@pytest.mark.usefixtures("forked_python")
def test_what_was_not_compared_is_not_written(project: Path) -> None:
    before = texts(project)
    status, said = ended(project, "--", "--epochs", "0")
    assert status == 3, said
    assert "INCOMPLETE: not compared: samples" in said
    assert "train.py was not written: not all that a proof needs was compared" in said
    assert texts(project) == before


FOLDS = """\
import torch
from data import loader_of

for fold in range(2):
    torch.manual_seed(fold)
    loader = loader_of(4)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            for part in x.chunk(2):
                (model(part).pow(2).mean() / 2).backward()
            optimizer.step()
    torch.save(model.state_dict(), f"fold{fold}.pt")
"""
MICRO_BATCHES = """\
import torch
from data import loader_of

torch.manual_seed(0)
loader = loader_of(4)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    batches = iter(loader)
    for step in range(2):
        optimizer.zero_grad()
        for micro in range(2):
            (x,) = next(batches)
            (model(x).pow(2).mean() / 2).backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(
    "script",
    [pytest.param(FOLDS, id="two_models"), pytest.param(MICRO_BATCHES, id="micro_batches", marks=pytest.mark.slow)],
)
def test_a_script_in_another_form_is_proven(project: Path, script: str) -> None:
    (project / "train.py").write_text(script)
    status, said = ended(project)
    assert status == 0, said
    assert "2 processes train the same model as 1" in said and "rd.distribute_loader" in texts(project)["train.py"]


@pytest.mark.usefixtures("forked_python")
def test_a_script_that_fails_before_its_conversion_is_told_so(project: Path) -> None:
    before = texts(project)
    status, said = ended(project, "--", "--reduction", "nothing")
    assert status == 1, said
    assert "has no attribute 'nothing'" in said
    assert "train.py was not written: as it is, without the conversion, it fails with these arguments" in said
    assert "this edit answers for it" not in said
    assert texts(project) == before


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_a_run_that_is_killed_leaves_the_project_as_it_was(project: Path, number: signal.Signals) -> None:
    before = texts(project)
    process = started(project)
    assert process.stderr is not None
    for line in process.stderr:
        if "the original and the retrofitted script" in line:
            break
    process.send_signal(number)
    process.wait(timeout=60)
    assert texts(project) == before
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert folders_of_runs(project) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "4"], "--nproc: only --prove runs the script"),
        (["--write", "--time-limit", "5"], "--time-limit: only --prove runs the script"),
        (["--write", "--", "--epochs", "2"], "convert runs no script, so there is nothing for -- --epochs 2"),
        (["--write", "--prove"], "not allowed with argument"),
    ],
)
def test_options_without_a_use_are_errors(
    project: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(project / "train.py"), *arguments])
    assert message in capsys.readouterr().err


def test_wrong_options_of_the_runs_are_errors(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = texts(project)
    assert main(["convert", str(project / "train.py"), "--prove", "-n", "1"]) == 2
    assert "-n must be at least 2, got 1" in capsys.readouterr().err
    assert texts(project) == before


def test_without_its_packages_the_command_says_what_to_install(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("retrofit.prove.command.PACKAGES", ("no_such_package",))
    assert main(["convert", str(project / "train.py"), "--prove"]) == 2
    said = capsys.readouterr().err
    assert "no_such_package is not installed" in said and "[verify]" in said


def test_a_file_that_is_changed_during_the_runs_is_not_overwritten(tmp_path: Path) -> None:
    planned = conversion(tmp_path, SCRIPT, data=DATA)
    _require_unchanged(planned)
    (tmp_path / "data.py").write_text(DATA + "# mine\n")
    with pytest.raises(ValueError, match=r"data\.py was changed during the runs; nothing was written"):
        _require_unchanged(planned)


def test_every_check_has_edits_that_answer_for_it() -> None:
    assert set(MADE_BY) == set(CHECKS)


def test_an_edit_is_found_by_its_line_its_rule_and_its_subject(tmp_path: Path) -> None:
    changes = changes_of(conversion(tmp_path, SCRIPT, data=DATA))
    codes = {code: change.first for change in changes for code in change.codes}
    text = (tmp_path / "train.py").read_text()
    assert text == SCRIPT
    by_rule = changes_for(failed("shards", "", "twice", cause="RF103"), changes)
    assert [change.lines() for change in by_rule] == [["    +loader = rd.distribute_loader(loader)"]]
    by_subject = changes_for(failed("metrics", "", "another figure"), changes)
    (lines,) = (change.lines() for change in by_subject)
    assert lines[0] == "    +    print(epoch, rd.loss.reduce_last_loss(loss).item())"
    place = f"ValueError: wrong at train.py:{codes['RF209']} in <module>"
    assert changes_for(failed("completes", "", "failed", value=place), changes)[0].first == codes["RF209"]
    assert changes_for(failed("determinism", "", "differs"), changes) == []


def test_a_folder_that_a_copy_links_becomes_one_of_links(tmp_path: Path) -> None:
    (tmp_path / "data" / "inner").mkdir(parents=True)
    (tmp_path / "data" / "inner" / "train.py").write_text("mine\n")
    (tmp_path / "data" / "large.bin").write_text("large")
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data").symlink_to(tmp_path / "data")
    own_folder(copy / "data" / "inner", copy)
    (copy / "data" / "inner" / "train.py").unlink()
    (copy / "data" / "inner" / "train.py").write_text("changed\n")
    assert (tmp_path / "data" / "inner" / "train.py").read_text() == "mine\n"
    assert (copy / "data" / "large.bin").read_text() == "large"

"""The projects that `retrofit verify` is tested with: the sound ones are sound, the seeded bugs can be seeded."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from verify.bugs.bug import PROJECTS, ROOT, SMALL_PROJECTS, copy_project
from verify.bugs.catalogue import BUGS, SOUND, Bug, seed_bug
from verify.projects.launch import Launcher

import retrofit.distributed as rd
from retrofit.verify.checks import CHECKS

SMALL_RUNS = [
    pytest.param(project, arguments, id=" ".join([project, *arguments]))
    for project in SMALL_PROJECTS
    for arguments in SOUND[project]
]
NAMED_BY_VERIFY = {
    code
    for path in (ROOT / "retrofit" / "verify").rglob("*.py")
    for code in re.findall(r'"(RF\d{3})"', path.read_text(encoding="utf-8"))
}
# The script fails or varies by itself; a batch whose loss is not a mean for another reason; two processes on one GPU.
# Steps of some ranks only, weights drawn again, folders named by clocks: they have tests of their own.
WITHOUT_A_BUG = {"RF001", "RF002", "RF216", "RF309", "RF409", "RF604", "RF209", "RF213", "RF509"}


def run(
    launcher: Launcher, folder: Path, arguments: list[str], script: str = "train.py", world_size: int = 1
) -> list[str]:
    """Run a script that must succeed and return the lines that rank 0 printed; the others print nothing."""
    ended = launcher.run(folder, script, arguments, world_size)
    assert ended["statuses"] == [0] * world_size, "\n".join(ended["outputs"])
    assert not any(ended["outputs"][1:]), ended["outputs"][1]
    return [line for line in ended["outputs"][0].splitlines() if not line.startswith("notice:")]


def last_checkpoint(folder: Path) -> dict[str, Any]:
    return torch.load(sorted(folder.glob("epoch_*.pt"))[-1], weights_only=True)


def assert_same(one: Any, other: Any, where: str) -> None:
    """Compare what a checkpoint holds, bit for bit."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, (first, second) in enumerate(zip(one, other)):
            assert_same(first, second, f"{where}.{number}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


@pytest.mark.parametrize(("project", "arguments"), SMALL_RUNS)
def test_one_process_trains_as_before_the_retrofit(
    launcher: Launcher, tmp_path: Path, project: str, arguments: list[str]
) -> None:
    copy_project(project, tmp_path)
    printed = run(launcher, tmp_path, [*arguments, "--out", "after"])
    assert printed == run(launcher, tmp_path, [*arguments, "--out", "before"], "train_single.py")
    assert len(printed) >= 3
    before, after = last_checkpoint(tmp_path / "before"), last_checkpoint(tmp_path / "after")
    for key in before:
        assert_same(before[key], after[key], key)


@pytest.mark.parametrize(("project", "arguments"), SMALL_RUNS)
def test_two_ranks_train_and_resume_where_they_were(
    launcher: Launcher, tmp_path: Path, project: str, arguments: list[str]
) -> None:
    copy_project(project, tmp_path)
    whole = run(launcher, tmp_path, [*arguments, "--out", "whole"], world_size=2)
    resume = ["--resume", "whole/epoch_001.pt"]
    resumed = run(launcher, tmp_path, [*arguments, "--out", "resumed", *resume], world_size=2)
    assert resumed == whole[1:]
    first, second = last_checkpoint(tmp_path / "whole"), last_checkpoint(tmp_path / "resumed")
    assert first["epoch"] == second["epoch"] == 3
    assert_same(first, second, "checkpoint")


@pytest.mark.parametrize("project", SMALL_PROJECTS)
def test_the_script_from_before_continues_a_checkpoint_of_two_ranks(
    launcher: Launcher, tmp_path: Path, project: str
) -> None:
    copy_project(project, tmp_path)
    run(launcher, tmp_path, ["--epochs", "1"], world_size=2)
    printed = run(launcher, tmp_path, ["--epochs", "2", "--resume", "out/epoch_001.pt"], "train_single.py")
    assert printed[0].startswith("epoch 2/2")


def test_the_classifier_finds_its_newest_checkpoint(launcher: Launcher, tmp_path: Path) -> None:
    copy_project("classifier", tmp_path)
    for script, world_size in (("train.py", 2), ("train_single.py", 1)):
        out = ["--out", f"out_{world_size}"]
        run(launcher, tmp_path, [*out, "--resume", "auto", "--epochs", "1"], script, world_size)
        printed = run(launcher, tmp_path, [*out, "--resume", "auto", "--epochs", "2"], script, world_size)
        assert printed[0].startswith("epoch 2/2")


def contrastive_gradients() -> list[torch.Tensor]:
    """Return the gradients of one contrastive step on 12 points, this rank's share of them."""
    folder = PROJECTS / "metric_learning"
    gather_rows = runpy.run_path(str(folder / "gather.py"))["gather_rows"]
    namespace = runpy.run_path(str(folder / "model.py"))
    torch.manual_seed(0)
    model = rd.distribute_model(namespace["Encoder"](16).double())
    rank, world_size = rd.get_rank(), rd.get_world_size()
    first, second = (torch.randn(12, 16, dtype=torch.float64)[rank::world_size] for _ in range(2))
    namespace["info_nce"](gather_rows(model(first)), gather_rows(model(second))).backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("world_size", [2, 3])
def test_gathered_rows_have_the_gradients_of_one_process(ranks: Any, world_size: int) -> None:
    (one,) = ranks(1).run(contrastive_gradients)
    for gradients in ranks(world_size).run(contrastive_gradients):
        for gradient, expected in zip(gradients, one):
            torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.id)
def test_a_bug_can_be_seeded(tmp_path: Path, bug: Bug) -> None:
    script = seed_bug(bug, tmp_path)
    assert script == tmp_path / "train.py"
    for name, _, new in bug.edits:
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert new in text
        ast.parse(text)
    assert bug.cause and set(bug.cause) <= NAMED_BY_VERIFY
    assert bug.check in CHECKS


def test_a_bug_is_refused_if_its_text_is_missing(tmp_path: Path) -> None:
    bug = Bug("00", "none", "gan", [("train.py", "no such line", "")], ("RF101",), "shards", "none")
    with pytest.raises(ValueError, match=r"bug 00: train.py holds 'no such line' 0 times"):
        seed_bug(bug, tmp_path / "absent")
    bug = Bug("00", "none", "gan", [("train.py", "rd.", "")], ("RF101",), "shards", "none")
    with pytest.raises(ValueError, match=r"holds 'rd.' \d\d times"):
        seed_bug(bug, tmp_path / "often")


def test_every_row_and_every_rule_has_a_bug() -> None:
    assert len({bug.id for bug in BUGS}) == len(BUGS)
    rows = {re.sub("[a-z]$", "", bug.id) for bug in BUGS}
    of_reference = {row for row in rows if row.startswith("R")}
    assert of_reference == {f"R{row}" for row in range(1, len(of_reference) + 1)}
    assert rows - of_reference == {f"{row:02}" for row in range(1, len(rows - of_reference) + 1)}
    assert {code for bug in BUGS for code in bug.cause} == NAMED_BY_VERIFY - WITHOUT_A_BUG

"""`retrofit convert` at the command line: it shows, writes all or nothing, and takes it back."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
import textwrap
from pathlib import Path

import pytest

from retrofit.cli import main

SHELLCHECK = str(Path(sysconfig.get_path("scripts"), "shellcheck"))
SCRIPT = """\
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), args.batch_size, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
PYTHON_2_ITERATOR = SCRIPT.replace(
    "    for (x,) in loader:\n",
    "    batches = iter(loader)\n    for i in range(4):\n        (x,) = batches.next()\n",
)
ADDED = [
    "+import multigpu as rd",
    "+rd.add_runtime_flags(parser)",
    "+rd.setup_distributed()",
    "+loader = rd.distribute_loader(loader)",
    "+model = rd.distribute_model(model)",
    "+optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))",
    "+if rd.is_main_process():",
    '+    torch.save(model.state_dict(), "model.pt")',
    "+rd.cleanup_distributed()",
]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "my project" / "train it.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_default_shows_a_small_diff_and_writes_nothing(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_in(script.parent)
    assert main(["convert", str(script)]) == 0
    shown = capsys.readouterr()
    added = [line for line in shown.out.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == ADDED
    assert "nothing was written; --write writes it" in shown.err
    assert files_in(script.parent) == before


def test_write_adds_the_runtime_and_the_scripts_and_undo_removes_them(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(script.parent)
    assert main(["convert", str(script), "--write"]) == 0
    after = files_in(script.parent)
    assert "`python 'train it.py' ARGUMENTS`" in after["MULTI_GPU.md"].decode()
    added = {name for name in after if name not in before and not name.startswith(".retrofit/")}
    assert added == {"train_torchrun.sh", "train_ddp.sh", ".vscode/launch.json", "MULTI_GPU.md", "multigpu.py"}
    assert os.access(script.parent / "train_torchrun.sh", os.X_OK)
    debug = json.loads(after[".vscode/launch.json"])["configurations"][0]
    assert debug["name"] == "Debug DDP Training" and debug["program"] == "${workspaceFolder}/train it.py"
    assert main(["convert", str(script), "--write"]) == 0
    assert "uses the runtime already; nothing to do" in capsys.readouterr().out
    assert files_in(script.parent) == after
    assert main(["convert", str(script), "--undo"]) == 0
    assert files_in(script.parent) == before


def test_the_launch_scripts_are_sound(script: Path, tmp_path: Path) -> None:
    main(["convert", str(script), "--write"])
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nif [ "$1" = -c ]; then echo 3; else printf "%s\\n" "$@"; fi\n')
    stub.chmod(0o755)
    for name, module in (("train_torchrun.sh", "torch.distributed.run"), ("train_ddp.sh", "torch.distributed.launch")):
        path = script.parent / name
        subprocess.run([SHELLCHECK, str(path)], check=True, timeout=300)
        result = subprocess.run(
            ["bash", str(path), "--batch_size", "8 9"],
            env={**os.environ, "PYTHON": str(stub)}, capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        words = result.stdout.splitlines()
        assert words[:2] == ["multigpu.py", module] and "--nproc_per_node=3" in words
        assert words[-3:] == ["train it.py", "--batch_size", "8 9"] and "--standalone" in words


def launched(folder: Path, stub: Path, *arguments: str, **variables: str) -> list[str]:
    """Return the words that train_torchrun.sh starts, or [] and what it said."""
    result = subprocess.run(
        ["bash", str(folder / "train_torchrun.sh"), *arguments],
        env={**os.environ, "PYTHON": str(stub), **variables}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    return result.stdout.splitlines() if result.returncode == 0 else [str(result.returncode), result.stderr.strip()]


def test_torchrun_gets_its_flags_unless_the_script_has_them_too(script: Path, tmp_path: Path) -> None:
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nif [ "$1" = -c ]; then echo 3; else printf "%s\\n" "$@"; fi\n')
    stub.chmod(0o755)
    original = script.read_text()
    main(["convert", str(script), "--write"])
    folder, start = script.parent, ["multigpu.py", "torch.distributed.run"]
    words = launched(folder, stub, "--master_port", "12345", "--batch_size=8", "--nproc-per-node=2")
    one = [*start, "--master_addr=127.0.0.1", "--master_port=12345", "--nproc_per_node=2", "train it.py"]
    assert words == [*one, "--batch_size=8"]
    assert launched(folder, stub, MASTER_PORT="12345", NPROC_PER_NODE="2") == one
    two = ["--nnodes=2", "--node_rank=1", "--master_addr=10.0.0.1"]
    assert launched(folder, stub, *two)[2:6] == [*two, "--master_port=29500"]
    assert launched(folder, stub, "--nnodes=2") == [
        "2",
        "train_torchrun.sh: error: NNODES=2 needs MASTER_ADDR, the first machine's address, and NODE_RANK, this "
        "machine's number",
    ]
    no_value = launched(folder, stub, "--master_port")[1]
    assert no_value.endswith("--master_port needs a value; give one, or leave out --master_port")
    main(["convert", str(script), "--undo"])
    script.write_text(original.replace("args =", 'parser.add_argument("--master-port")\nargs =', 1))
    main(["convert", str(script), "--write"])
    assert launched(folder, stub, "--master-port", "7", "--nnodes=1")[2:] == [
        "--standalone", "--nproc_per_node=3", "train it.py", "--master-port", "7",
    ]  # fmt: skip
    subprocess.run([SHELLCHECK, str(folder / "train_torchrun.sh")], check=True, timeout=300)


def test_the_installed_package_can_be_used_instead_of_a_copy(script: Path) -> None:
    assert main(["convert", str(script), "--write", "--no-vendor"]) == 0
    assert not (script.parent / "multigpu.py").exists()
    assert "import retrofit.distributed as rd" in script.read_text() and "multigpu" not in script.read_text()
    for name in ("train_torchrun.sh", "train_ddp.sh"):
        assert " -m retrofit.distributed.launcher torch.distributed." in (script.parent / name).read_text()


def test_an_existing_debug_configuration_is_kept(script: Path) -> None:
    launch = script.parent / ".vscode" / "launch.json"
    launch.parent.mkdir()
    launch.write_text('{"version": "0.2.0", "configurations": [{"name": "mine"}]}')
    main(["convert", str(script), "--write"])
    assert [entry["name"] for entry in json.loads(launch.read_text())["configurations"]] == [
        "mine",
        "Debug DDP Training",
    ]


def test_a_file_with_comments_is_left_alone(script: Path) -> None:
    launch = script.parent / ".vscode" / "launch.json"
    launch.parent.mkdir()
    launch.write_text('{\n  // mine\n  "configurations": []\n}')
    main(["convert", str(script), "--write"])
    assert launch.read_text() == '{\n  // mine\n  "configurations": []\n}'


def test_a_dirty_work_tree_needs_force(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=script.parent, check=True, capture_output=True, timeout=300)

    git("init", "-q")
    git("add", ".")
    script.write_text(SCRIPT + "print('done')\n")
    assert main(["convert", str(script), "--write"]) == 2
    assert "has uncommitted changes; commit them first, or add --force" in capsys.readouterr().err
    assert script.read_text() == SCRIPT + "print('done')\n"
    assert main(["convert", str(script), "--write", "--force"]) == 0


def test_undo_keeps_files_that_were_changed_since(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["convert", str(script), "--write"])
    script.write_text(script.read_text() + "print('mine')\n")
    after = files_in(script.parent)
    assert main(["convert", str(script), "--undo"]) == 2
    assert "changed since the conversion: train it.py" in capsys.readouterr().err
    assert files_in(script.parent) == after


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('hello')\n", "no loop with a backward call was found"),
        (
            "class Trainer:\n    def fit(self):\n" + textwrap.indent(SCRIPT, " " * 8),
            "a method of a class, of which this script makes no object",
        ),
        (SCRIPT.replace("optim.SGD", "optim.LBFGS"), "LBFGS evaluates the loss several times per step"),
        (SCRIPT.replace("loader = DataLoader(", "loader = list("), "no DataLoader is found"),
        (PYTHON_2_ITERATOR, "no method next() since torch 1.13; write next(batches)"),
        (
            SCRIPT.replace("model = torch", "torch.distributed.init_process_group('gloo')\nmodel = torch"),
            "it is distributed already",
        ),
        ("import pytorch_lightning as pl\npl.Trainer().fit(None)\n", "distributed already by Lightning"),
    ],
)
def test_a_script_that_cannot_be_converted_is_refused_with_the_reason(
    script: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(text)
    assert main(["convert", str(script), "--write"]) == 1
    message = capsys.readouterr().err
    assert reason in message and "train it.py:" in message and "nothing was written" in message
    assert files_in(script.parent) == {"train it.py": text.encode()}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "no script at"),
        ("old.py", "print 'hello'\n", "Python 2 syntax"),
    ],
)
def test_a_script_that_cannot_be_read_is_an_error(
    tmp_path: Path, name: str, text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert main(["convert", str(tmp_path / name)]) == 2
    assert message in capsys.readouterr().err


def test_a_module_that_cannot_be_read_stops_the_conversion(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script.with_name("old.py").write_text("print 'x'\n")
    script.write_text("import old\n" + SCRIPT)
    assert main(["convert", str(script), "--write"]) == 1
    assert "old.py:1: Python 2 syntax" in capsys.readouterr().err


@pytest.mark.parametrize("other", ["--undo", "--update-runtime"])
def test_one_thing_at_a_time(other: str, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["convert", str(script), "--write", other])
    assert f"argument {other}: not allowed with argument --write" in capsys.readouterr().err


def test_undo_without_a_conversion_is_an_error(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(script), "--undo"]) == 2
    assert "no conversion to undo" in capsys.readouterr().err


ADVICE = {  # what the plan says of a script, by the change to SCRIPT that brings it about: (before, after, message)
    "RF302": (
        "loss = model(x).pow(2).mean()",
        "mask = (x[:, :1] > 0).float()\n        loss = model(x).pow(2).mean()\n        if x.max() > 0:\n"
        "            loss = (model(x).pow(2) * mask).sum() / mask.sum()",
        "rd.loss.rank_share(rd.loss.batch_count(valid))",
    ),
}


@pytest.mark.parametrize("code", ADVICE)
def test_the_plan_says_what_is_left_to_do(code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after, remedy = ADVICE[code]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace(before, after))
    assert main(["convert", str(script)]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if f" {code} " in line]
    assert "; left to you: " in line and remedy in line

"""Checkpoints written in the background: the training goes on, no error is lost, no kill costs a former one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import pytest
import torch
from run_program import ROOT, program_environment
from torch import nn
from verify.projects.launch import Launcher

import retrofit.distributed as rd
from retrofit.distributed.checkpoint import full as checkpoint

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
KINDS = [
    "full",
    pytest.param(
        "sharded", marks=pytest.mark.skipif(not NEW_TORCH, reason=f"needs torch 2.6, this is {torch.__version__}")
    ),
]
SLOW_S = 1.5


def slow(write: Callable[..., None]) -> Callable[..., None]:
    def slowly(*args: Any) -> None:
        time.sleep(SLOW_S)
        write(*args)

    return slowly


def slow_writers() -> Any:
    """Return a context in which a rank's files take SLOW_S longer, as on a slow disk; what is written is real."""
    return mock.patch.multiple(
        checkpoint, write_part=slow(checkpoint.write_part), write_atomically=slow(checkpoint.write_atomically)
    )


def new_training() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = rd.strategies.select.wrap_model(nn.Linear(8, 8), "ddp")
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 8)).sum().backward()  # a collective of the training while the files are written
    optimizer.step()
    optimizer.zero_grad()


def train_while_saving(path: str, kind: str) -> dict[str, Any]:
    model, optimizer = new_training()
    step(model, optimizer)
    weight, momentum = (
        tensor.clone() for tensor in (model.weight.data, optimizer.state_dict()["state"][0]["momentum_buffer"])
    )
    with slow_writers():
        started = time.monotonic()
        rd.save_checkpoint(model, optimizer, 1, path, sharded=kind == "sharded", asynchronous=True)
        for _ in range(20):
            step(model, optimizer)
        trained_s, was_there = time.monotonic() - started, Path(path).exists()
        rd.checkpoint.finish_saves()
    return {"trained_s": trained_s, "was_there": was_there, "weight": weight, "momentum": momentum}


@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_and_the_checkpoint_holds_the_moment_of_its_save(
    ranks: Any, tmp_path: Path, kind: str
) -> None:
    ranks(2).run(train_while_saving, str(tmp_path / "warm"), kind)  # imports
    for result in ranks(2).run(train_while_saving, str(tmp_path / "c"), kind):
        assert result["trained_s"] < SLOW_S and not result["was_there"]
        content = rd.checkpoint.read_checkpoint(tmp_path / "c")
        assert torch.equal(content["model"]["weight"], result["weight"])
        assert torch.equal(content["optimizer"]["state"][0]["momentum_buffer"], result["momentum"])
    assert sorted(os.listdir(tmp_path)) == ["c", "warm"]


def complete_without_being_asked(path: str, kind: str) -> bool:
    model, optimizer = new_training()
    rd.save_checkpoint(model, optimizer, 1, path, sharded=kind == "sharded", asynchronous=True)
    deadline = time.monotonic() + 60
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    there = Path(path).exists()
    rd.checkpoint.finish_saves()
    return there


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_appears_as_soon_as_it_is_complete(ranks: Any, tmp_path: Path, kind: str) -> None:
    assert ranks(2).run(complete_without_being_asked, str(tmp_path / "c"), kind) == [True, True]


def saves_in_a_row(folder: str, kind: str) -> list[int]:
    model, optimizer = new_training()
    with slow_writers():
        for epoch in (1, 2):  # the second waits for the first
            rd.save_checkpoint(
                model, optimizer, epoch, f"{folder}/{epoch}", sharded=kind == "sharded", asynchronous=True
            )
        first = Path(folder, "1").exists()
        rd.checkpoint.find_checkpoint("auto", [], to_train=True)  # as does who looks for checkpoints
        return [first, Path(folder, "2").exists()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_save_waits_for_the_one_in_progress(ranks: Any, tmp_path: Path, kind: str) -> None:
    assert ranks(2).run(saves_in_a_row, str(tmp_path), kind) == [[True, True]] * 2


def failing(folder: str, kind: str, at: str, failing_rank: int) -> tuple[str, str, bool]:
    """Return the error, and whether the save that failed had returned without it."""
    model, optimizer = new_training()

    def broken(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    returned = False
    try:
        with mock.patch.object(os, "fsync", broken if rd.get_rank() == failing_rank else os.fsync):
            rd.save_checkpoint(model, optimizer, 1, f"{folder}/1", sharded=kind == "sharded", asynchronous=True)
            returned = True
            checkpoint.start_save.__globals__["_under_way"].written.wait()
        if at == "the next save":
            rd.save_checkpoint(model, optimizer, 2, f"{folder}/2", sharded=kind == "sharded", asynchronous=True)
        else:
            rd.checkpoint.finish_saves()
    except Exception as error:
        rd.checkpoint.finish_saves()  # nothing is left to wait for
        return type(error).__name__, str(error), returned
    return "", "", returned


@pytest.mark.parametrize("at", ["the next save", "the end"])
@pytest.mark.parametrize(("kind", "failing_rank"), [("full", 0), ("sharded", 0), ("sharded", 1)])
def test_an_error_of_the_background_write_is_raised_on_every_rank(
    ranks: Any, tmp_path: Path, kind: str, failing_rank: int, at: str
) -> None:
    if kind == "sharded" and not NEW_TORCH:
        pytest.skip(f"sharded needs torch 2.6, this is {torch.__version__}")
    answers = ranks(2).run(failing, str(tmp_path), kind, at, failing_rank, timeout_s=40)
    name, text, returned = answers[failing_rank]
    assert name == "WriteError" and returned, text
    assert text.startswith(f"could not write checkpoint {tmp_path / '1'}: ") and "No space left on device" in text
    assert "MiB free); make room or choose another folder; the checkpoints already written are unchanged" in text
    other = answers[1 - failing_rank]
    assert other[0] == "RuntimeError"
    assert other[1].startswith(f"rank {failing_rank} failed: WriteError: could not write")
    assert not list(tmp_path.iterdir())


SAVE_SLOWLY = """
import sys, time, torch
from torch import nn
import retrofit.distributed as rd
from retrofit.distributed.checkpoint import full as checkpoint
from retrofit.distributed.checkpoint.positions import save_position
from pathlib import Path
folder, kind, then = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def half_written(real):
    def write(*args):
        first = args[1]
        path = first if first.suffix == ".pt" else first.with_name(f".{first.name}.tmp")
        (path.with_name(f".{path.name}.tmp") if path.suffix == ".pt" else path / "half").write_bytes(b"half")
        print("writing", flush=True)
        time.sleep(float(sys.argv[4]))
        real(*args)
    return write
import os
os.environ.update(RETROFIT_CKPT=kind, RETROFIT_ASYNC_SAVE="1")
model = nn.Linear(4, 4)
rd.setup_distributed()
save_position(folder, 1, 0, is_best=True, model=model, optimizer=None)
rd.checkpoint.finish_saves()
for name in ("write_part", "write_atomically"):
    setattr(checkpoint, name, half_written(getattr(checkpoint, name)))
save_position(folder, 2, 0, is_best=True, model=model, optimizer=None)
if then == "raise":
    raise ValueError("an error of the training")
if then == "cleanup":
    rd.cleanup_distributed()
    print([path.name for path in rd.checkpoint.checkpoints_in(folder)], flush=True)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_kill_in_mid_write_the_previous_checkpoint_is_found(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", SAVE_SLOWLY, str(tmp_path), kind, "wait", "60"]
    with subprocess.Popen(command, env=program_environment(), cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"writing\n"
        finally:
            process.send_signal(signal.SIGKILL)
    assert any(path.name.startswith(".") for path in tmp_path.iterdir()), "it was not killed in mid write"
    for to_train in (True, False):
        path = rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=to_train)
        assert path is not None and rd.checkpoint.read_checkpoint(path)["epoch"] == 1


@pytest.mark.parametrize("then", ["return", "raise", "cleanup"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_exit_waits_for_the_save_in_progress(launcher: Launcher, tmp_path: Path, kind: str, then: str) -> None:
    (tmp_path / "program.py").write_text(SAVE_SLOWLY)
    folder = tmp_path / "run"
    folder.mkdir()
    ended = launcher.run(tmp_path, "program.py", [str(folder), kind, then, "0.5"], waits_at_exit=True)
    assert ended["statuses"] == [1 if then == "raise" else 0], ended["outputs"]
    assert [rd.checkpoint.read_checkpoint(path)["epoch"] for path in rd.checkpoint.checkpoints_in(folder)] == [2, 1]
    if then == "cleanup":
        assert "checkpoint_0002" in ended["outputs"][0]


UNREAD_ERROR = """
import sys
from torch import nn
import retrofit.distributed as rd
rd.save_checkpoint(nn.Linear(4, 4), None, 1, sys.argv[1], sharded=False, asynchronous=True)
"""


def test_an_unread_error_is_printed_at_the_end(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(UNREAD_ERROR)
    (tmp_path / "file").write_text("")
    ended = launcher.run(tmp_path, "program.py", [str(tmp_path / "file" / "c.pt")], waits_at_exit=True)
    assert f"WriteError: could not write checkpoint {tmp_path / 'file' / 'c.pt'}: " in ended["outputs"][0]

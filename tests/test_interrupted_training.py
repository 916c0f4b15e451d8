"""Training that is killed or asked to stop, and continued: it ends with the weights of an uninterrupted run."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from forked_python import ForkedPython
from guide_commands import unused_port
from image_folder import folder_options, make_images
from verify.projects.launch import Launcher

REPO = Path(__file__).resolve().parent.parent
IMAGES, BATCH = 48, 4  # to train on (a quarter as many validate); per rank and step
TRAINING = ["--layers", "18", "--crop_size", "32", "--batchsize", str(BATCH), "--epochs", "2", "--val_epoch", "1"]
DEADLINE_S = 300
TRAIN_PY = str(REPO / "train.py")
STARTS: dict[int | str, list[str]] = {
    1: [sys.executable, TRAIN_PY],
    2: [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone", TRAIN_PY],
    3: [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=3", "--standalone", TRAIN_PY],
    "script": ["bash", str(REPO / "train_torchrun.sh"), "--nproc_per_node", "2"],
}


@contextmanager
def training(start: int | str, logdir: Path, *arguments: str) -> Iterator[subprocess.Popen]:
    """Start train.py as a user does, in a process group of its own that is gone afterwards.

    `start`: how many processes, or "script" for train_torchrun.sh with two.
    """
    command = [*STARTS[start], *TRAINING, *folder_options(images_for(logdir)), "--logdir", str(logdir), *arguments]
    with open(logdir.with_suffix(".txt"), "a") as output:
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON": sys.executable}
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, env=environ)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def images_for(logdir: Path) -> Path:
    """Return the folder of images next to a log folder, made when it is first asked for."""
    folder = logdir.with_name("data")
    return folder if folder.exists() else make_images(folder, IMAGES)


def run_to_the_end(launcher: Launcher, world_size: int, logdir: Path, *arguments: str) -> None:
    """Train in processes that need no start of Python: no signal goes to them."""
    options = [*TRAINING, *folder_options(images_for(logdir)), "--logdir", str(logdir), *arguments]
    ended = launcher.run(REPO, TRAIN_PY, options, world_size, DEADLINE_S)
    assert ended["statuses"] == [0] * world_size, ended["outputs"]
    with logdir.with_suffix(".txt").open("a") as output:
        output.write(ended["outputs"][0])


def wait_for(logdir: Path, text: str) -> None:
    """Wait until the training has printed `text` (its progress bar says which epoch and step it is in)."""
    deadline = time.monotonic() + DEADLINE_S
    while text not in logdir.with_suffix(".txt").read_text():
        assert time.monotonic() < deadline, logdir.with_suffix(".txt").read_text()
        time.sleep(0.02)


def final_checkpoint(logdir: Path) -> dict:
    (run,) = logdir.iterdir()  # a resumed run goes on in its folder
    return torch.load(run / "checkpoint_0002_00000000.pt", weights_only=True)


def assert_same_state(one: dict, other: dict) -> None:
    for key, value in one["model"].items():
        assert torch.equal(value, other["model"][key]), key
    for index, state in one["optimizer"]["state"].items():
        assert torch.equal(state["momentum_buffer"], other["optimizer"]["state"][index]["momentum_buffer"])
    if one["ema"] is not None:
        assert all(torch.equal(value, other["ema"][key]) for key, value in one["ema"].items())
    assert one["scheduler"]["last_epoch"] == other["scheduler"]["last_epoch"]
    assert one["best_miou"] == other["best_miou"]
    assert torch.equal(one["rng_states"][0]["now"]["torch"], other["rng_states"][0]["now"]["torch"])


def options_for(world_size: int) -> tuple[str, ...]:
    """Return a moving average for all, loader workers for one process (for several see test_restarts.py).

    Three ranks train the transformer and save in the background.
    """
    options = ("--workers", "2" if world_size == 1 else "0", "--ema_decay", "0.9")
    return (*options, "--model_type", "swin_mlp", "--async_save") if world_size == 3 else options


class Undisturbed(dict[int, dict]):
    """The final checkpoints of runs to the end, by world size, each made when it is first asked for."""

    def __init__(self, launcher: Launcher, folders: pytest.TempPathFactory) -> None:
        super().__init__()
        self.launcher, self.folders = launcher, folders

    def __missing__(self, world_size: int) -> dict:
        logdir = self.folders.mktemp(f"uninterrupted_{world_size}") / "log"
        run_to_the_end(self.launcher, world_size, logdir, *options_for(world_size))
        self[world_size] = final_checkpoint(logdir)
        return self[world_size]


@pytest.fixture(scope="module")
def uninterrupted(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict]:
    return Undisturbed(launcher, tmp_path_factory)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, Path], Path]:
    """`interrupted(world_size, folder)` returns the log folder of a run that a signal has ended in its second epoch.

    Each is a copy in `folder` of one run, with what that printed and its data.
    """
    originals: dict[int, Path] = {}

    def interrupt(world_size: int) -> Path:
        logdir = tmp_path_factory.mktemp(f"interrupted_{world_size}") / "log"
        with training(world_size, logdir, *options_for(world_size)) as process:
            wait_for(logdir, "epoch 2/2:  ")  # the second epoch has begun
            # As a scheduler does, or a terminal that is closed; torchrun passes both on.
            os.kill(process.pid, signal.SIGHUP if world_size == 2 else signal.SIGTERM)
            status = process.wait(DEADLINE_S)
        text = logdir.with_suffix(".txt").read_text()
        assert "interrupted in epoch 2, saved" in text
        if world_size == 1:  # torchrun reports a signal in its own words
            assert status == 143
            assert "Traceback" not in text
        return logdir

    def copy(world_size: int, folder: Path) -> Path:
        if world_size not in originals:
            originals[world_size] = interrupt(world_size)
        shutil.copytree(originals[world_size].parent, folder, dirs_exist_ok=True)
        return folder / "log"

    return copy


def assert_curves_are_whole(logdir: Path, world_size: int) -> None:
    """TensorBoard shows every step of both epochs once, in order, also those that were trained twice."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (run,) = logdir.iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    global_batch = BATCH * world_size
    steps = 2 * (IMAGES // global_batch)
    seen = [event.step for event in events.Scalars("train/loss")]
    assert seen == [global_batch * step for step in range(1, steps + 1)]


@pytest.mark.parametrize(
    "world_size", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_asked_to_stop_in_mid_epoch(
    tmp_path: Path,
    launcher: Launcher,
    uninterrupted: dict[int, dict],
    interrupted: Callable[[int, Path], Path],
    world_size: int,
) -> None:
    logdir = interrupted(world_size, tmp_path)
    position = torch.load(sorted(logdir.glob("*/checkpoint_*.pt"))[-1], weights_only=True)["position"]
    assert position["epoch"] == 1
    assert 0 < position["step"] < IMAGES // (BATCH * world_size)
    run_to_the_end(launcher, world_size, logdir, "--resume", "auto", *options_for(world_size))
    assert_same_state(final_checkpoint(logdir), uninterrupted[world_size])
    assert_curves_are_whole(logdir, world_size)


@pytest.mark.slow  # test_restarts.py has a quicker kill
@pytest.mark.parametrize("world_size", [1, 2])
def test_killed_at_once(tmp_path: Path, launcher: Launcher, uninterrupted: dict[int, dict], world_size: int) -> None:
    logdir = tmp_path / "log"
    options = options_for(world_size)
    with training(world_size, logdir, *options) as process:
        wait_for(logdir, "epoch 2/2:  ")
        os.killpg(process.pid, signal.SIGKILL)  # launcher, ranks and loader workers
    run_to_the_end(launcher, world_size, logdir, "--resume", "auto", *options)
    assert_same_state(final_checkpoint(logdir), uninterrupted[world_size])
    assert_curves_are_whole(logdir, world_size)


def test_asked_to_stop_and_the_newest_checkpoint_damaged(
    tmp_path: Path, launcher: Launcher, uninterrupted: dict[int, dict], interrupted: Callable[[int, Path], Path]
) -> None:
    logdir = interrupted(1, tmp_path)
    newest = sorted(logdir.glob("*/checkpoint_*.pt"))[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 0xFF
    newest.write_bytes(content)
    run_to_the_end(launcher, 1, logdir, "--resume", "auto", *options_for(1))
    text = logdir.with_suffix(".txt").read_text()
    assert f"checkpoint {newest} is damaged" in text
    assert newest.with_name(newest.name + ".damaged").exists()
    assert_same_state(final_checkpoint(logdir), uninterrupted[1])


@pytest.mark.slow
def test_ctrl_c_saves_and_exits_with_0(tmp_path: Path) -> None:
    logdir = tmp_path / "log"
    with training(1, logdir, "--workers", "1") as process:
        wait_for(logdir, "epoch 1/2:  ")
        os.killpg(process.pid, signal.SIGINT)  # the terminal sends it to loader workers too
        assert process.wait(DEADLINE_S) == 0
    assert "interrupted in epoch 1, saved" in logdir.with_suffix(".txt").read_text()
    assert len(list(logdir.glob("*/checkpoint_0000_*.pt"))) == 1


def run_second(logdir: Path) -> subprocess.CompletedProcess[str]:
    """Continue a run that is under way, to its end."""
    command = [sys.executable, TRAIN_PY, *TRAINING, *folder_options(logdir.with_name("data")), *options_for(2)]
    command += ["--logdir", str(logdir), "--resume", "auto"]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


def test_ctrl_c_at_the_launch_script_ends_with_our_line(
    tmp_path: Path, forks: ForkedPython, interrupted: Callable[[int, Path], Path]
) -> None:
    logdir = interrupted(2, tmp_path)
    logdir.with_suffix(".txt").write_text("")
    resumed = ("--resume", "auto", "--epochs", "500", "--master_port", str(unused_port()))
    with training("script", logdir, *options_for(2), *resumed) as process:
        wait_for(logdir, "epoch 3/500:  ")
        with forks.in_place():
            second = run_second(logdir)
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does: not every torch has its ranks in this group
        assert process.wait(DEADLINE_S) == 0
    (run,) = logdir.iterdir()
    told = rf"RunInUse: process \d+ on {socket.gethostname()} trains in {run} since \S+ \S+; wait for it or end it, or "
    assert re.fullmatch(told + "start another run without --resume", second.stderr.strip()), second.stderr
    assert second.returncode == 1 and (run / ".in_use_by").read_text() == ""
    text = logdir.with_suffix(".txt").read_text()
    assert f"--master_port={resumed[-1]} " in text
    assert re.search(rf"resumed from {logdir}/\S+/checkpoint_0001_\d+\.pt: 1 of 500 epoch\(s\), \d+ step\(s\) of", text)
    assert re.match(rf"interrupted in epoch \d+, saved {logdir}/\S+; --resume auto continues$", text.splitlines()[-1])
    assert "Traceback" not in text and "SignalException" not in text


def test_two_ranks_continue_as_one_and_again_as_two(
    tmp_path: Path, launcher: Launcher, interrupted: Callable[[int, Path], Path]
) -> None:
    logdir = interrupted(2, tmp_path)
    run_to_the_end(launcher, 1, logdir, *options_for(2), "--resume", "auto")
    text = logdir.with_suffix(".txt").read_text()
    assert "notice: resumed with world_size 2 -> 1, global_batch 8 -> 4" in text
    assert "Effective lr: 0.002" in text
    assert "Effective lr: 0.001" in text
    run_to_the_end(launcher, 2, logdir, *options_for(2), "--resume", "auto", "--epochs", "3")
    text = logdir.with_suffix(".txt").read_text()
    assert "world_size 1 -> 2, global_batch 4 -> 8" in text
    (run,) = logdir.iterdir()
    assert torch.load(run / "checkpoint_0003_00000000.pt", weights_only=True)["world_size"] == 2

"""A worker dies, torchrun starts all of them again: the job goes on by itself and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from image_folder import folder_options, make_images
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verify.projects.launch import Launcher

from retrofit.distributed.job import process_identity
from retrofit.distributed.job.process_identity import own_identity
from retrofit.distributed.job.restart import _own_run_first as resume_own_run
from retrofit.distributed.job.restart import claim_run, launcher_identity, own_run
from retrofit.distributed.job.restart_store import ABSENT, fresh_store, may_restart, peek
from retrofit.distributed.job.run_lock import LOCK_FILE, RunInUse, release_runs

ROOT = Path(__file__).resolve().parent.parent
IMAGES = 80  # of the one epoch
GLOBAL_BATCH = 8
STEPS = IMAGES // GLOBAL_BATCH
TRAINING = ["--layers", "18", "--crop_size", "32", "--batchsize", "4", "--epochs", "1", "--val_epoch", "1"]
TRAINING += ["--model_type", "swin_mlp"]  # quick; test_interrupted_training.py has BatchNorm
OPTIONS = ["--workers", "1", "--ema_decay", "0.9", "--chk_steps", "2"]
DEADLINE_S = 300


def options(data: Path, logdir: Path) -> list[str]:
    return [*TRAINING, *folder_options(data), "--logdir", str(logdir), *OPTIONS]


class Job:
    """`bash train_torchrun.sh` with two processes and one restart, its output in a file."""

    def __init__(self, data: Path, logdir: Path) -> None:
        self.output = logdir.with_name(f"{logdir.name}.txt")
        command = ["bash", str(ROOT / "train_torchrun.sh"), *options(data, logdir)]
        environ = {
            **os.environ,
            "PYTHON": sys.executable,
            "MAX_RESTARTS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
        }
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command, env=environ, stdout=output, stderr=output, start_new_session=True, cwd=ROOT
            )

    def text(self) -> str:
        return self.output.read_text()

    def steps_done(self) -> int:
        """Return the optimizer steps that the progress bars have shown."""
        seen = re.findall(rf"epoch 1/1:.*?(\d+)/{IMAGES} ", self.text())
        return max((int(images) // GLOBAL_BATCH for images in seen), default=0)

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.steps_done() < step:
            assert time.monotonic() < deadline and self.process.poll() is None, self.text()
            time.sleep(0.01)

    def worker(self, rank: int) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if child.environ().get("RANK") == str(rank))

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def assert_same_training(one: Path, other: Path) -> None:
    """Weights, momentum, moving average, schedule and random state are equal bit for bit, curves are whole."""
    states = [torch.load(run / "checkpoint_0001_00000000.pt", weights_only=True) for run in (one, other)]
    for name in ("model", "ema"):
        assert all(torch.equal(value, states[1][name][key]) for key, value in states[0][name].items()), name
    for index, state in states[0]["optimizer"]["state"].items():
        assert torch.equal(state["momentum_buffer"], states[1]["optimizer"]["state"][index]["momentum_buffer"])
    assert states[0]["scheduler"]["last_epoch"] == states[1]["scheduler"]["last_epoch"] == STEPS
    random_states = [state["rng_states"][1]["now"]["torch"] for state in states]
    assert torch.equal(*random_states)
    for run in (one, other):
        events = EventAccumulator(str(run)).Reload()
        images = [event.step for event in events.Scalars("train/loss")]
        assert images == [GLOBAL_BATCH * step for step in range(1, STEPS + 1)]


@pytest.fixture
def start():
    jobs: list[Job] = []

    def start_job(data: Path, logdir: Path) -> Job:
        jobs.append(Job(data, logdir))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()


def test_a_worker_killed_at_a_random_step_changes_nothing(tmp_path: Path, start, launcher: Launcher) -> None:
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    step, rank = draw.randrange(1, STEPS - 2), draw.randrange(2)
    print(f"seed {seed}: SIGKILL for rank {rank} once step {step} of {STEPS} is done")
    data = make_images(tmp_path / "data", IMAGES)
    undisturbed = launcher.run(ROOT, str(ROOT / "train.py"), options(data, tmp_path / "undisturbed"), 2, DEADLINE_S)
    assert undisturbed["statuses"] == [0, 0], undisturbed["outputs"]
    (undisturbed_run,) = (tmp_path / "undisturbed").iterdir()

    logdir = tmp_path / "log"
    job = start(data, logdir)
    job.wait_for_step(step)
    (run,) = logdir.iterdir()
    # A newer run of somebody else, finished: what `--resume auto` would take.
    other = logdir / "999_another_run"
    other.symlink_to(undisturbed_run)
    job.worker(rank).send_signal(signal.SIGKILL)
    status = job.process.wait(DEADLINE_S)
    other.unlink()
    assert status == 0, job.text()
    assert f"started again after a failure, continuing with {run}" in job.text()
    assert_same_training(run, undisturbed_run)


# ---- which run is this job's own ---------------------------------------------------------------------------


def launched_by(monkeypatch: pytest.MonkeyPatch, launcher: str, attempt: int = 0) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/errors/{launcher}/attempt_{attempt}/0/error.json")


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    folders = [tmp_path / name for name in ("003_c", "002_b", "001_a")]
    for folder in folders:
        folder.mkdir()
    return folders


def test_a_restarted_job_finds_its_own_run_and_no_other(monkeypatch: pytest.MonkeyPatch, runs: list[Path]) -> None:
    launched_by(monkeypatch, "one")
    assert own_run(runs) is None
    claim_run(runs[1])
    launched_by(monkeypatch, "another")
    claim_run(runs[0])
    launched_by(monkeypatch, "one", attempt=1)
    assert own_run(runs) == runs[1]
    launched_by(monkeypatch, "a third")
    assert own_run(runs) is None


def test_a_run_continued_by_a_later_job_belongs_to_that_job(monkeypatch: pytest.MonkeyPatch, runs: list[Path]) -> None:
    for launcher in ("one", "two"):
        launched_by(monkeypatch, launcher)
        claim_run(runs[2])
        claim_run(runs[2])
        assert own_run(runs) == runs[2]
    assert len((runs[2] / ".launched_by").read_text().splitlines()) == 2


def test_what_a_restart_resumes(monkeypatch: pytest.MonkeyPatch, runs: list[Path]) -> None:
    launched_by(monkeypatch, "one")
    assert resume_own_run("auto", runs) == "auto"  # the first start: what the user said
    claim_run(runs[1])
    assert resume_own_run("auto", runs) == ""  # died before its first checkpoint, and 003 is another job's
    assert resume_own_run("pretrained.pt", runs) == "pretrained.pt"
    assert resume_own_run("", runs) == ""
    (runs[1] / "checkpoint_0001_00000000.pt").touch()
    for resume in ("", "auto", "pretrained.pt"):
        assert resume_own_run(resume, runs) == str(runs[1])


def test_without_torchrun_nothing_is_written(monkeypatch: pytest.MonkeyPatch, runs: list[Path]) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert launcher_identity() is None and launcher_identity({"TORCHELASTIC_ERROR_FILE": "/dev/null"}) is None
    claim_run(runs[0])
    assert not (runs[0] / ".launched_by").exists() and own_run(runs) is None
    assert resume_own_run("auto", runs) == "auto"


def test_the_next_start_removes_what_a_killed_writer_has_left(
    monkeypatch: pytest.MonkeyPatch, runs: list[Path]
) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    for name in (".checkpoint_0001_00000000.pt.123.tmp", ".best.pt.123.tmp", ".best.dcp.tmp"):
        (runs[0] / name).write_text("half")
    (runs[0] / ".checkpoint_0002_00000000.dcp.tmp").mkdir()
    (runs[0] / ".checkpoint_0002_00000000.dcp.tmp" / "half").touch()
    kept = ["checkpoint_0001_00000000.pt", ".user.tmp", "notes.tmp"]
    for name in kept:
        (runs[0] / name).touch()
    claim_run(runs[0])
    assert sorted(path.name for path in runs[0].iterdir()) == sorted([*kept, LOCK_FILE])


@pytest.fixture
def other() -> Iterator[dict]:
    """What another training on this machine says of itself in a run's lock."""
    with subprocess.Popen(["sleep", "100"]) as process:
        yield {**own_identity(), "pid": process.pid, "started": process_identity._started(process.pid), "since": "noon"}
        process.kill()


def test_a_second_training_of_a_run_is_refused_until_the_first_has_ended(runs: list[Path], other: dict) -> None:
    (runs[1] / LOCK_FILE).write_text(json.dumps({**other, "folder": runs[0].stat().st_ino}))  # runs[1] is a copy
    claim_run(runs[1])
    half = runs[0] / ".checkpoint_0001_00000000.pt.123.tmp"
    half.touch()
    (runs[0] / LOCK_FILE).write_text(json.dumps(other))
    told = rf"^process {other['pid']} on {other['host']} trains in {runs[0]} since noon; wait for it or end it, or "
    with pytest.raises(RunInUse, match=told):
        claim_run(runs[0])
    assert half.exists() and json.loads((runs[0] / LOCK_FILE).read_text()) == other
    os.kill(other["pid"], signal.SIGKILL)
    os.waitid(os.P_PID, other["pid"], os.WEXITED | os.WNOWAIT)  # a zombie from now on
    claim_run(runs[0])
    claim_run(runs[0])  # its own
    holder = json.loads((runs[0] / LOCK_FILE).read_text())
    assert holder["pid"] == os.getpid() and not half.exists()
    release_runs()
    assert (runs[0] / LOCK_FILE).read_text() == ""


@pytest.mark.parametrize("same_job", ["", "launcher", "slurm"])
def test_the_lock_of_another_machine_holds_unless_its_job_was_started_again(
    monkeypatch: pytest.MonkeyPatch, runs: list[Path], other: dict, same_job: str
) -> None:
    launched_by(monkeypatch, "one")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    before = {"launchers": ["/errors/one" if same_job == "launcher" else "/errors/two"]}
    before["slurm"] = ["7", ""] if same_job == "slurm" else ["6", "1"]
    (runs[0] / LOCK_FILE).write_text(json.dumps({**other, **before, "host": "node7", "machine": "elsewhere"}))
    if same_job:
        claim_run(runs[0])
    else:
        told = rf"on node7 trains in .*, and cannot be seen from here; if it has ended, remove {runs[0] / LOCK_FILE}$"
        with pytest.raises(RunInUse, match=told):
            claim_run(runs[0])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_an_empty_or_damaged_lock_is_ignored(runs: list[Path], text: str) -> None:
    (runs[0] / LOCK_FILE).write_text(text)
    claim_run(runs[0])


# ---- the launcher's store, which outlives the workers ------------------------------------------------------


def test_a_restart_store_has_no_keys_of_an_earlier_attempt() -> None:
    shared = dist.HashStore()
    for attempt in range(3):
        with ThreadPoolExecutor(3) as threads:
            stores = list(threads.map(lambda rank: fresh_store(shared, rank, 3, 30.0), range(3)))
        assert peek(stores[2], "address") == ABSENT
        stores[0].set("address", str(attempt))
        assert stores[2].get("address") == str(attempt).encode()


def test_a_missing_rank_is_named() -> None:
    with pytest.raises(RuntimeError, match=r"no sign of rank\(s\) 1, 2"):
        fresh_store(dist.HashStore(), 0, 3, 0.1)


def test_only_a_job_that_may_restart_needs_a_restart_store() -> None:
    assert may_restart({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "1"})
    assert not may_restart({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "0"})
    assert not may_restart({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_MAX_RESTARTS": "1"})
    assert not may_restart({})

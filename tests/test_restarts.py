"""A worker dies, torchrun starts all of them again: the job goes on by itself and ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from test_interrupted_training import DEADLINE_S, TRAINING, assert_curves_are_whole, assert_same_state, final_checkpoint

from retrofit.distributed.restart import claim_run, launcher_identity, own_run, resume_own_run

ROOT = Path(__file__).resolve().parent.parent
IMAGES = 320  # of an epoch
GLOBAL_BATCH = 32
STEPS = 2 * IMAGES // GLOBAL_BATCH
OPTIONS = ["--workers", "1", "--ema_decay", "0.9", "--chk_steps", "3"]


class Job:
    """`bash train_torchrun.sh` with two processes, its output in a file."""

    def __init__(self, logdir: Path, max_restarts: int) -> None:
        self.output = logdir.with_name(f"{logdir.name}.txt")
        command = ["bash", str(ROOT / "train_torchrun.sh"), *TRAINING, "--logdir", str(logdir), *OPTIONS]
        environ = {
            **os.environ,
            "PYTHON": sys.executable,
            "MAX_RESTARTS": str(max_restarts),
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
        seen = re.findall(rf"epoch (\d)/2:.*?(\d+)/{IMAGES} ", self.text())
        return max((((int(epoch) - 1) * IMAGES + int(images)) // GLOBAL_BATCH for epoch, images in seen), default=0)

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


@pytest.fixture
def start():
    jobs: list[Job] = []

    def start_job(logdir: Path, max_restarts: int = 0) -> Job:
        jobs.append(Job(logdir, max_restarts))
        return jobs[-1]

    yield start_job
    for job in jobs:
        job.end()


def test_a_worker_killed_at_a_random_step_changes_nothing(tmp_path: Path, start) -> None:
    seed = random.SystemRandom().randrange(10**6)
    draw = random.Random(seed)
    step, rank = draw.randrange(1, STEPS), draw.randrange(2)
    print(f"seed {seed}: SIGKILL for rank {rank} once step {step} of {STEPS} is done")
    undisturbed = start(tmp_path / "undisturbed")
    assert undisturbed.process.wait(DEADLINE_S) == 0, undisturbed.text()

    logdir = tmp_path / "log"
    job = start(logdir, max_restarts=1)
    job.wait_for_step(step)
    (run,) = logdir.iterdir()
    # A newer run of somebody else, finished: what `--resume auto` would take.
    other = tmp_path / "log" / "999_another_run"
    os.symlink(next((tmp_path / "undisturbed").iterdir()), other)
    job.worker(rank).send_signal(signal.SIGKILL)
    status = job.process.wait(DEADLINE_S)
    other.unlink()
    assert status == 0, job.text()
    assert f"started again after a failure, going on with {run}" in job.text()
    assert_same_state(final_checkpoint(logdir), final_checkpoint(tmp_path / "undisturbed"))  # bit for bit
    assert_curves_are_whole(logdir, 2)


def test_without_restarts_left_the_job_fails(tmp_path: Path, start) -> None:
    job = start(tmp_path / "log")
    job.wait_for_step(1)
    job.worker(1).send_signal(signal.SIGKILL)
    assert job.process.wait(DEADLINE_S) == 1
    assert "-9" in job.text()


# ---- which run is this job's own ---------------------------------------------------------------------------


def launched_by(monkeypatch: pytest.MonkeyPatch, launcher: str, attempt: int = 0) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{launcher}/attempt_{attempt}/0/error.json")


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


def test_a_run_that_was_continued_by_a_later_job_is_the_later_jobs(
    monkeypatch: pytest.MonkeyPatch, runs: list[Path]
) -> None:
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
    assert list(runs[0].iterdir()) == [] and own_run(runs) is None
    assert resume_own_run("auto", runs) == "auto"

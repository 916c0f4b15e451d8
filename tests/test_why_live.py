"""`RETROFIT_WHY=1`: a whole training that is measured now and then, on real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrofit.why.live import EVERY, FIRST, starts_window

pytestmark = pytest.mark.usefixtures("forked_python")

ROOT = Path(__file__).resolve().parents[1]
WITH_RUNTIME = """\
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import multigpu as rd

rank, _, world = rd.setup_distributed()
data = TensorDataset(torch.rand(640, 4), torch.rand(640, 1))
loader = rd.distribute_loader(DataLoader(data, 4))
model = rd.distribute_model(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(1):
    for x, y in loader:
        if rank == 1:
            time.sleep(0.01)
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
rd.cleanup_distributed()
"""


def started(folder: Path, script: str, *command: str, **environ: str) -> subprocess.CompletedProcess:
    """Run the script on two processes as torchrun does, with the runtime file and the kit at hand."""
    (folder / "train.py").write_text(script)
    (folder / "multigpu.py").write_bytes((ROOT / "retrofit" / "convert" / "added" / "multigpu.py").read_bytes())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environ}
    return subprocess.run(launcher, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)


def test_a_converted_training_writes_a_card_a_page_and_curves(tmp_path: Path) -> None:
    result = started(tmp_path, WITH_RUNTIME, "train.py", RETROFIT_WHY="1")
    assert result.returncode == 0, result.stderr
    assert "has no effect" not in result.stdout
    card = json.loads((tmp_path / "why" / "why.json").read_text())
    assert card["optimizer_step"] == 80 and card["world_size"] == 2 and card["speedup"] is None
    cause = card["causes"][0]
    assert (cause["name"], cause["rank"], cause["phase"]) == ("late-rank", 1, "forward")
    assert "retrofit why: 2 processes" in result.stderr and "Written to why/" in result.stderr
    assert "rank 1 is late" in (tmp_path / "why" / "why.html").read_text()

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curves = EventAccumulator(str(tmp_path / "why"))
    curves.Reload()
    names = ("data_wait_ms", "exposed_comm_ms", "late_ranks_ms", "straggler_rank", "speedup")
    assert set(curves.Tags()["scalars"]) == {f"why/{name}" for name in names}
    last = {name: curves.Scalars(f"why/{name}")[-1] for name in names}
    assert last["straggler_rank"].value == 1 and last["straggler_rank"].step == 80
    assert 2 < last["late_ranks_ms"].value < 50 and 0 < last["speedup"].value < 2


def test_a_script_without_the_runtime_is_started_by_the_module(tmp_path: Path) -> None:
    script = WITH_RUNTIME.replace("import multigpu as rd", "import retrofit.distributed as rd")
    result = started(tmp_path, script, "-m", "retrofit.why", "train.py")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "why" / "why.json").read_text())["causes"][0]["rank"] == 1


def test_without_the_kit_the_variable_is_an_error_that_says_so(tmp_path: Path) -> None:
    script = "import sys\n\nsys.modules['retrofit'] = None\n" + WITH_RUNTIME
    result = started(tmp_path, script, "train.py", RETROFIT_WHY="1")
    assert result.returncode != 0 and "RETROFIT_WHY=1 needs torch-retrofit in this Python" in result.stderr


def test_a_training_that_is_too_short_says_so(tmp_path: Path) -> None:
    result = started(tmp_path, WITH_RUNTIME.replace("640", "32"), "train.py", RETROFIT_WHY="1")
    assert result.returncode == 0, result.stderr
    assert "nothing could be compared: 4 steps were made" in result.stderr


def test_a_folder_that_cannot_be_written_ends_the_measurement_and_not_the_training(tmp_path: Path) -> None:
    (tmp_path / "why").write_text("a file of the user")
    result = started(tmp_path, WITH_RUNTIME + "print('trained')\n", "train.py", RETROFIT_WHY="1")
    assert result.returncode == 0 and result.stdout.count("trained") == 2, result.stderr
    assert result.stderr.count("the measurement has ended, the training has not: ") == 2
    assert (tmp_path / "why").read_text() == "a file of the user"


def test_the_command_and_the_variable_do_not_measure_twice(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WITH_RUNTIME)
    (tmp_path / "multigpu.py").write_bytes((ROOT / "retrofit" / "convert" / "added" / "multigpu.py").read_bytes())
    command = [sys.executable, "-m", "retrofit", "why", "train.py", "--no-single", "--html", "", "--json", "card.json"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "RETROFIT_WHY": "1"}
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    card = json.loads((tmp_path / "card.json").read_text())
    assert 0.005 < card["step_s"] < 0.1 and card["causes"][0]["rank"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.json", "multigpu.py", "train.py"]


@pytest.mark.parametrize(("step", "starts"), [(FIRST, True), (10 * FIRST, True), (EVERY, False), (EVERY + FIRST, True)])
def test_windows_begin_at_the_same_steps_on_every_rank(step: int, starts: bool) -> None:
    assert starts_window(step) is starts
    assert not starts_window(step + 1)

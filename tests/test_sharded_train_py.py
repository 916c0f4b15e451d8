"""train.py with --strategy fsdp --ckpt sharded --async_save, as a user starts it, and what one process makes of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from image_folder import folder_options, make_images

import retrofit.distributed as rd
import train

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6),
    reason=f"fully_shard and sharded checkpoints need torch 2.6, this is {torch.__version__}",
)
SMALL = ["--model_type", "swin_mlp", "--layers", "18", "--crop_size", "32", "--workers", "0", "--batchsize", "8"]


@pytest.mark.usefixtures("forked_python")
def test_one_process_tests_and_continues_sharded_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py", *SMALL]
    command += folder_options(make_images(tmp_path / "data", 32))
    command += ["--strategy", "fsdp", "--wrap_layers", "SwinTransformerBlock", "--ckpt", "sharded", "--async_save"]
    command += ["--ema_decay", "0.5", "--epochs", "1", "--chk_steps", "1", "--logdir", str(tmp_path / "log")]
    ended = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "log").iterdir()
    names = [path.name for path in rd.checkpoint.checkpoints_in(run)]
    assert names == ["checkpoint_0001_00000000.dcp", "checkpoint_0000_00000016.dcp"]
    assert not [path.name for path in run.iterdir() if path.name.endswith(".tmp")]
    assert train.main(["--task", "test", "--resume", "auto", "--logdir", str(tmp_path / "log")]) == 0
    best = run / "best.dcp"
    chosen = best if best.exists() else run / names[0]
    assert f"weights: {chosen}, 1 epoch(s)" in capsys.readouterr().out
    assert train.main(["--resume", "auto", "--epochs", "2", "--chk_steps", "0", "--logdir", str(tmp_path / "log")]) == 0
    assert "notice: resumed with world_size 2 -> 1" in capsys.readouterr().out
    newest, former = rd.checkpoint.checkpoints_in(run)[:2]
    assert (newest.name, former.name) == ("checkpoint_0002_00000000.pt", names[0])
    content = rd.checkpoint.read_checkpoint(newest)
    assert content["epoch"] == 2 and list(content["ema"]) == list(content["model"])

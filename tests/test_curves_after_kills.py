"""Curves of a run that was stopped and killed where it hurts: none of their points is missing, none is there twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from image_folder import folder_options, make_images
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboardX import SummaryWriter

from segmentation.curves import CurveWriter

IMAGES, BATCH, EPOCHS = 16, 4, 3
TRAINING = ["--layers", "18", "--crop_size", "32", "--batchsize", str(BATCH), "--epochs", str(EPOCHS)]
TRAINING += ["--val_epoch", "0", "--model_type", "swin_mlp", *folder_options(Path("data"))]
TRAINING += ["--workers", "0", "--chk_interval", "9", "--chk_steps", "2", "--logdir", "log"]
PROGRAM = """
import os, signal, sys
import train

mode, argv = sys.argv[1], sys.argv[2:]
forward_backward, save_state, log_validation = train.forward_backward, train.save_state, train.log_validation


def forward_backward_of_the_last_step(args, state, *rest):
    if mode == "asked to stop in the last step of an epoch" and state.epochs.step == state.epochs.steps_per_epoch:
        os.kill(os.getpid(), signal.SIGTERM)
    return forward_backward(args, state, *rest)


def save_and_die(args, state, *rest):
    path = save_state(args, state, *rest)
    if mode == "killed right after a save" and state.epochs.global_step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def log_validation_and_die(writer, *arguments):
    log_validation(writer, *arguments)
    writer.flush()
    if mode == "killed between validation and save":
        os.kill(os.getpid(), signal.SIGKILL)


train.forward_backward, train.save_state = forward_backward_of_the_last_step, save_and_die
train.log_validation = log_validation_and_die
sys.exit(train.main(argv))
"""


def test_every_point_is_there_once(launcher: Any, tmp_path: Path) -> None:
    make_images(tmp_path / "data", IMAGES)
    (tmp_path / "killed.py").write_text(PROGRAM)
    starts = [
        ("asked to stop in the last step of an epoch", 143),
        ("killed right after a save", -9),
        ("killed between validation and save", -9),
        ("to the end", 0),
    ]
    for mode, status in starts:
        ended = launcher.run(tmp_path, "killed.py", [mode, *TRAINING, "--resume", "auto"])
        assert ended["statuses"] == [status], ended["outputs"]
    (run,) = (tmp_path / "log").iterdir()
    events = EventAccumulator(str(run), size_guidance={"tensors": 0}).Reload()
    epoch_ends = [IMAGES * epoch for epoch in range(1, EPOCHS + 1)]
    every_step = list(range(BATCH, IMAGES * EPOCHS + 1, BATCH))
    seen = {name: [event.step for event in events.Tensors(name)] for name in events.Tags()["tensors"]}
    assert seen.pop("options/text_summary") == [1, IMAGES + 1, IMAGES + 2 * BATCH + 1]
    assert {"train/loss", "train/lr", "train/images_per_s", "val/loss", "val/mIoU"} <= set(seen)
    for name, steps in seen.items():
        assert steps == (every_step if name in ("train/loss", "train/lr") else epoch_ends), name


def test_a_tool_that_patches_summary_writers_sees_the_curves() -> None:
    assert issubclass(CurveWriter, SummaryWriter) and CurveWriter.add_scalar is SummaryWriter.add_scalar

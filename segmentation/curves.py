"""TensorBoard output of a run: the curve writer, and its options, validation scores and predictions."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tensorboardX import SummaryWriter
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.writer import FileWriter

from segmentation.gpu_stats import gpu_scalars
from segmentation.metrics import ConfusionMatrix

FLUSH_S = 30.0  # longest time until a running TensorBoard sees a point, if the training seldom saves


class CurvesError(OSError):
    """The curves cannot be written."""

    is_explained = True


class CurveWriter(SummaryWriter):
    """Writes a run's curves into its folder; what was added before `flush` is in the file when `flush` returns.

    A plain SummaryWriter passes events to a thread, and its `flush` does not wait for that thread: a process that is
    killed loses points older than its checkpoint. `replaced_from`: TensorBoard shows the points of older files in the
    folder only before this step. Raises CurvesError if the file cannot be written.
    """

    all_writers: dict[str, FileWriter] | None

    def __init__(self, folder: Path, replaced_from: int | None = None) -> None:
        self._folder = folder
        super().__init__(str(folder), purge_step=replaced_from)

    def _get_file_writer(self) -> FileWriter:
        if self.all_writers is None:
            writer = self.file_writer = _FileWriter(self._folder)
            self.all_writers = {writer.get_logdir(): writer}
            if self.purge_step is not None:
                writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
        return self.file_writer


class _FileWriter(FileWriter):
    """A FileWriter without a thread."""

    def __init__(self, folder: Path) -> None:
        self.event_writer = _EventFile(folder)
        self._default_metadata: dict[str, Any] = {}


class _EventFile:
    """The file of events, written at once; the system may buffer them for FLUSH_S seconds at most."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._flushed_at = folder, time.monotonic()
        self._events = EventsWriter(str(folder / "events"), filename_suffix=f".{os.getpid()}")

    def get_logdir(self) -> str:
        return str(self._folder)

    def add_event(self, event: Event) -> None:
        self._try(self._events.write_event, event)
        if time.monotonic() - self._flushed_at > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        self._try(self._events.flush)
        self._flushed_at = time.monotonic()

    def close(self) -> None:
        self._try(self._events.close)

    def _try(self, write: Any, *arguments: Any) -> None:
        try:
            write(*arguments)
        except OSError as error:
            raise CurvesError(
                f"could not write the curves in {self._folder}: {error}; make room or choose another --logdir; the "
                "checkpoints already written are unchanged"
            ) from error


def log_options(writer: Any, text: str, step: int) -> None:
    """Show `text`, the options of the run as YAML, on the page "text"."""
    writer.add_text("options", "\n".join(f"    {line}" for line in text.splitlines()), step)  # markdown: verbatim


def log_throughput(writer: Any, images: int, seconds: float, step: int) -> None:
    """Add the images per second of an epoch, and what its GPU is doing."""
    scalars = {"train/images_per_s": images / seconds, **(gpu_scalars() if writer else {})}
    for name, value in scalars.items():
        writer.add_scalar(name, value, step)


def log_validation(
    writer: Any, confusion: ConfusionMatrix, loss: float, class_names: Sequence[str], panels: torch.Tensor, step: int
) -> None:
    """Add a validation's curves, one of IoU for each class that occurs, and its picture (3, H, W)."""
    scores = {"val/loss": loss, "val/mIoU": confusion.miou(), "val/pixel_accuracy": confusion.pixel_accuracy()}
    scores.update({f"val_IoU/{name}": iou for name, iou in zip(class_names, confusion.iou().tolist())})
    for name, score in scores.items():
        if score == score:  # nan: the class occurs nowhere
            writer.add_scalar(name, score, step)
    writer.add_image("val/input_label_prediction", panels, step)

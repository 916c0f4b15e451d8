"""What TensorBoard shows of a run besides the training's own curves: options, validation scores, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from segmentation.metrics import ConfusionMatrix


def log_options(writer: Any, text: str, step: int) -> None:
    """Show `text`, the options of the run as YAML, on the page "text"."""
    writer.add_text("options", "\n".join(f"    {line}" for line in text.splitlines()), step)  # markdown: as it stands


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

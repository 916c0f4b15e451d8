"""Segmentation loss as a sum over pixels, so that the caller chooses what to divide by."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from segmentation.precision import full_precision

IGNORE_INDEX = 255


def num_valid_pixels(label: Tensor) -> int:
    """Count the pixels of `label` (N, H, W) that are not IGNORE_INDEX."""
    return int(torch.count_nonzero(label != IGNORE_INDEX))


def cross_entropy_sum(logits: Tensor, label: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Sum the cross entropy over the valid pixels, in float32 whatever the dtype of the logits.

    logits: (N, C, H, W) float; label: (N, H, W) int64, IGNORE_INDEX = not counted.
    Returns a float32 scalar (float64 for float64 logits); exactly 0, with a zero gradient, if every pixel is ignored.
    Divide it by `num_valid_pixels` for the mean.

    Raises ValueError if the shapes do not match or, on the CPU, if a label is not a class of the logits
    (an accelerator reports that asynchronously, in its own words).
    """
    if logits.dim() != 4 or label.shape != (logits.shape[0], *logits.shape[2:]):
        raise ValueError(
            f"logits of shape {tuple(logits.shape)} and label of shape {tuple(label.shape)} do not "
            "belong together; pass logits (N, C, H, W) and label (N, H, W)"
        )
    try:
        # reduction="none" and our own sum: CUDA's fused 2-d sum adds atomically, in an arbitrary order, and
        # is refused under torch.use_deterministic_algorithms(True).
        per_pixel = F.cross_entropy(
            full_precision(logits),
            label,
            ignore_index=IGNORE_INDEX,
            reduction="none",
            label_smoothing=label_smoothing,
        )
    except IndexError as error:
        num_classes = logits.shape[1]
        wrong = sorted(set(label.unique().tolist()) - {*range(num_classes), IGNORE_INDEX})
        raise ValueError(
            f"label holds {wrong}, but the model has {num_classes} classes; raise num_classes to at least "
            f"the largest label + 1, or set these pixels to {IGNORE_INDEX} (ignored)"
        ) from error
    return per_pixel.sum()

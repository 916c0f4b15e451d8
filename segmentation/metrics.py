"""The confusion matrix and the scores that are read from it."""

from __future__ import annotations

import torch

from segmentation.losses import IGNORE_INDEX


class ConfusionMatrix:
    """Count label/prediction pairs exactly, in int64 on the CPU.

    `matrix` (C, C): rows are labels, columns are predictions. `num_samples`: images seen. Both are plain
    sums, so the counts of parts of a dataset add up to those of the whole dataset.
    """

    def __init__(self, num_classes: int) -> None:
        if not 1 <= num_classes <= IGNORE_INDEX:
            raise ValueError(
                f"num_classes must be between 1 and {IGNORE_INDEX}, got {num_classes}; "
                f"{IGNORE_INDEX} itself marks ignored pixels"
            )
        self.num_classes = num_classes
        self.matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)
        self.num_samples = 0

    def update(self, prediction: torch.Tensor, label: torch.Tensor) -> None:
        """Add a batch: prediction and label (N, H, W), class indices on the same device, any integer type.

        Pixels with label 255 are left out. Raises ValueError if the shapes differ or a value is not a
        class.
        """
        if prediction.shape != label.shape or label.dim() != 3:
            raise ValueError(
                f"prediction {tuple(prediction.shape)} and label {tuple(label.shape)} must both be "
                "(N, H, W); pass logits.argmax(1) of the label's size"
            )
        self._check_range("prediction", prediction, self.num_classes - 1)
        self._check_range("label", label, IGNORE_INDEX)
        # The ignored label gets its own rows, removed after counting: cheaper than masking the pixels.
        pairs = (label.long() * self.num_classes).add_(prediction)
        rows = IGNORE_INDEX + 1
        counts = torch.bincount(pairs.flatten(), minlength=rows * self.num_classes).view(rows, self.num_classes).cpu()
        stray = counts[self.num_classes : IGNORE_INDEX].sum(dim=1)
        if stray.any():
            value = self.num_classes + int(stray.nonzero()[0])
            raise ValueError(
                f"label contains the value {value}, but num_classes is {self.num_classes}; "
                f"use 0..{self.num_classes - 1}, or {IGNORE_INDEX} for pixels to ignore"
            )
        self.matrix += counts[: self.num_classes]
        self.num_samples += label.shape[0]

    @staticmethod
    def _check_range(what: str, values: torch.Tensor, highest: int) -> None:
        if ((values < 0) | (values > highest)).any():
            low, high = (int(value) for value in torch.aminmax(values))
            raise ValueError(f"{what} contains the value {low if low < 0 else high}; allowed are 0..{highest}")

    def iou(self) -> torch.Tensor:
        """Return intersection over union per class, (C,) float64; nan for a class that never occurs."""
        matrix = self.matrix.double()
        intersection = matrix.diagonal()
        return intersection / (matrix.sum(dim=0) + matrix.sum(dim=1) - intersection)

    def miou(self) -> float:
        """Return the mean IoU over the classes that occur; nan if nothing was counted."""
        return float(self.iou().nanmean())

    def pixel_accuracy(self) -> float:
        """Return the fraction of valid pixels predicted correctly; nan if nothing was counted."""
        return float(self.matrix.diagonal().sum().double() / self.matrix.sum().double())

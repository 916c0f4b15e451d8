"""Base class of the datasets: images with labels, and the sample dict built from one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

from torch.utils.data import Dataset
from torchvision import tv_tensors

from segmentation.losses import IGNORE_INDEX
from segmentation.transforms import eval_transform, train_transform

# What `load` returns: image (3, H, W), label (H, W), pseudo-label (H, W) or None; all uint8.
RawSample = tuple[tv_tensors.Image, tv_tensors.Mask, Optional[tv_tensors.Mask]]


SPLITS = ("train", "val")


def check_split(split: str, splits: tuple[str, ...] = SPLITS) -> None:
    """Raise ValueError if `split` is none of `splits`."""
    if split not in splits:
        raise ValueError(f"unknown split {split!r}; use one of {', '.join(splits)}")


class SegmentationDataset(Dataset[dict[str, Any]]):
    """Samples dict(image, label, pseudo, name); training samples are augmented, the others are full images.

    image: (3, H, W) float32, normalised. label, pseudo: (H, W) int64, 255 = ignore; pseudo is a copy of
    label where the dataset has no pseudo-labels. A subclass defines `load`, `sample_name`, `__len__` and
    `image_size`. No sample changes the state of the dataset, so the order of access and the number of
    loader processes never matter.
    """

    def __init__(self, split: str, num_classes: int, class_names: Sequence[str], crop_size: int) -> None:
        if not 2 <= num_classes <= IGNORE_INDEX:
            raise ValueError(
                f"num_classes must be between 2 and {IGNORE_INDEX}, got {num_classes}; count the background "
                f"as a class, but not the ignored value {IGNORE_INDEX}"
            )
        self.split = split
        self.num_classes = num_classes
        self.class_names = [
            *class_names[:num_classes],
            *(f"class {i}" for i in range(len(class_names), num_classes)),
        ]
        self.crop_size = crop_size
        self.transform = train_transform(crop_size) if split == "train" else eval_transform()

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (H, W) of every sample, or None where the samples differ in size."""
        raise NotImplementedError

    def __len__(self) -> int:
        raise NotImplementedError

    def load(self, index: int) -> RawSample:
        """Read or generate one image and its masks, before any transform."""
        raise NotImplementedError

    def sample_name(self, index: int) -> str:
        """Name the sample: unique in the split, usable as a file name."""
        raise NotImplementedError

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} does not exist; the {self.split} split has {len(self)} samples")
        index = int(index) % len(self)
        image, label, pseudo = self.transform(*self.load(index))
        return {"image": image, "label": label, "pseudo": pseudo, "name": self.sample_name(index)}

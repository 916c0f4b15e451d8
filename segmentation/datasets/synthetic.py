"""The synthetic datasets: textured shapes generated from a seed, nothing to download, nothing on disk."""

from __future__ import annotations

import torch
from torchvision import tv_tensors

from segmentation.datasets.base import RawSample, SegmentationDataset, check_split
from segmentation.datasets.scribble import pseudo_label, scribble_label
from segmentation.datasets.shapes import SYNTHETIC_NAMES, generate, image_generator

CROP_SIZE = 64
MIN_CROP_SIZE = 32
DEFAULT_LENGTH = {"train": 320, "val": 64}


class SyntheticShapes(SegmentationDataset):
    """Images of textured shapes; the content depends only on (seed, split, index) and the image size.

    The images are crop_size x crop_size. With `scribble`, training labels are thin strokes and `pseudo` is
    a noisy dense mask; validation labels stay dense.
    """

    def __init__(
        self,
        split: str,
        num_classes: int = len(SYNTHETIC_NAMES),
        crop_size: int = 0,
        seed: int = 0,
        length: int | None = None,
        scribble: bool = False,
    ) -> None:
        check_split(split)
        if num_classes < len(SYNTHETIC_NAMES):
            raise ValueError(
                f"the synthetic datasets have {len(SYNTHETIC_NAMES)} classes, but num_classes is "
                f"{num_classes}; pass --numclasses {len(SYNTHETIC_NAMES)}"
            )
        crop_size = crop_size or CROP_SIZE
        if crop_size < MIN_CROP_SIZE:
            raise ValueError(
                f"crop_size is {crop_size} pixels, too small for textured shapes; use {MIN_CROP_SIZE} or more"
            )
        length = DEFAULT_LENGTH[split] if length is None else length
        if length < 1:
            raise ValueError(f"length is {length}; a dataset needs at least 1 image")
        super().__init__(split, num_classes, SYNTHETIC_NAMES, crop_size)
        self.seed = seed
        self.length = length
        self.scribble = scribble

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (H, W) of every sample."""
        return self.crop_size, self.crop_size

    def __len__(self) -> int:
        return self.length

    def sample_name(self, index: int) -> str:
        """Name the sample after split and index."""
        return f"{self.split}_{index:06d}"

    def load(self, index: int) -> RawSample:
        """Generate one image and its masks."""
        image, label, owner, shapes = generate(self.seed, self.split, index, self.crop_size)
        pseudo = None
        if self.scribble and self.split == "train":
            rng = image_generator(self.seed, self.split, index, 1)
            pseudo = tv_tensors.Mask(torch.from_numpy(pseudo_label(shapes, self.crop_size, rng)))
            label = scribble_label(label, owner, shapes, rng)
        return tv_tensors.Image(torch.from_numpy(image)), tv_tensors.Mask(torch.from_numpy(label)), pseudo

"""Find image and mask files, read them strictly, and build a dataset from them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors

from segmentation.datasets.base import RawSample, SegmentationDataset
from segmentation.losses import IGNORE_INDEX

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp")
MASK_MODES = ("1", "L", "P", "I", "I;16", "I;16B")
DEEP_MODES = ("I", "I;16", "I;16B", "I;16L", "F")
# Everything PIL's decoders raise on damaged files.
DECODE_ERRORS = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    IndexError,
    struct.error,
    zlib.error,
    Image.DecompressionBombError,
)


def require_folder(path: Path, what: str) -> Path:
    """Return `path` if it is a folder. Raises FileNotFoundError with `what`, the remedy."""
    if path.is_dir():
        return path
    state = "is a file" if path.exists() else "does not exist"
    raise FileNotFoundError(f"folder {path} {state}; {what}")


def list_images(folder: Path) -> list[Path]:
    """Return the image files of a folder, sorted by name. Raises if there is none, or one stem twice."""
    files = sorted(
        path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")
    )
    if not files:
        raise FileNotFoundError(
            f"folder {folder} holds no image; put files with one of the endings {' '.join(IMAGE_SUFFIXES)} there"
        )
    seen: dict[str, Path] = {}
    for path in files:
        other = seen.setdefault(path.stem, path)
        if other != path:
            raise ValueError(
                f"{other} and {path.name} have the same name without ending, so they would share a mask "
                "and a prediction; rename one of them"
            )
    return files


def _decode(path: Path, what: str, remedy: str) -> tuple[np.ndarray, str]:
    """Decode a whole file; return its array and mode ('RGB' for what == 'image')."""
    try:
        with Image.open(path) as image:
            mode = image.mode
            if what == "image" and mode not in DEEP_MODES:
                return np.array(image.convert("RGB")), "RGB"
            return np.array(image), mode
    except FileNotFoundError:
        raise FileNotFoundError(f"{what} {path} does not exist any more; restore it or start again") from None
    except DECODE_ERRORS as error:
        raise RuntimeError(f"cannot read {what} {path}: {type(error).__name__}: {error}; {remedy}") from error


def read_image(path: str | Path) -> tv_tensors.Image:
    """Read an image file of any 8-bit mode as RGB, (3, H, W) uint8.

    Raises RuntimeError with the path if the file is truncated, damaged or not an image; ValueError if it is a
    16-bit one.
    """
    array, mode = _decode(Path(path), "image", "the file is truncated, damaged or not an image: replace or remove it")
    if mode in DEEP_MODES:
        raise ValueError(f"image {path} has more than 8 bits per pixel (mode {mode}); convert it to 8 bits")
    return tv_tensors.Image(torch.from_numpy(array).permute(2, 0, 1))


def read_mask(path: str | Path, num_classes: int, void: int | None = None) -> tv_tensors.Mask:
    """Read a single-channel mask of class indices, (H, W) uint8; the value `void` becomes 255.

    Raises RuntimeError with the path if the file is unreadable; ValueError if it is a colour picture, or if
    a value is neither a class nor 255 nor `void`.
    """
    array, mode = _decode(Path(path), "mask", "the file is truncated, damaged or not an image: replace it")
    if mode not in MASK_MODES:
        raise ValueError(
            f"mask {path} is a colour picture (mode {mode}), not class indices; save it as a single-channel "
            "PNG ('L' or 'P') whose pixel values are the class indices"
        )
    if mode == "1":
        array = array.astype(np.uint8)
    if void is not None:
        array = np.where(array == void, array.dtype.type(IGNORE_INDEX), array)
    # A byte histogram costs a tenth of sorting the pixels; deeper masks are rare.
    present = np.flatnonzero(np.bincount(array.reshape(-1))) if array.dtype == np.uint8 else np.unique(array)
    bad = present[((present < 0) | (present >= num_classes)) & (present != IGNORE_INDEX)]
    if bad.size:
        raise ValueError(
            f"mask {path} contains the value {int(bad[0])}, but num_classes is {num_classes}; raise "
            f"--numclasses, or correct the mask ({IGNORE_INDEX} marks pixels to ignore)"
        )
    return tv_tensors.Mask(torch.from_numpy(array.astype(np.uint8, copy=False)))


class Record(NamedTuple):
    """The files of one sample; `pseudo` is None where there is no pseudo-label."""

    name: str
    image: Path
    mask: Path
    pseudo: Path | None = None


def common_size(records: Sequence[Record]) -> tuple[int, int] | None:
    """Return the (H, W) that all images share, read from the headers; None if not all readable and equal."""
    size = None
    for record in records:
        try:
            with Image.open(record.image) as image:
                width, height = image.size
        except DECODE_ERRORS:
            return None  # the full message comes when the sample is loaded
        if size not in (None, (height, width)):
            return None
        size = (height, width)
    return size


class FileDataset(SegmentationDataset):
    """A dataset of image and mask files; a sample's files are checked when it is loaded.

    `crop_size` 0 means the shorter side of the first image, at most `largest_crop`.
    """

    def __init__(
        self,
        records: Sequence[Record],
        split: str,
        num_classes: int,
        class_names: Sequence[str],
        crop_size: int = 0,
        largest_crop: int = 512,
        void: int | None = None,
    ) -> None:
        first = common_size(records[:1]) if crop_size == 0 else None
        crop_size = crop_size or (min(largest_crop, *first) if first else largest_crop)
        super().__init__(split, num_classes, class_names, crop_size)
        self.records = list(records)
        self.void = void
        self._image_size = (crop_size, crop_size) if split == "train" else common_size(records)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """The (H, W) of every sample (training: the crop), or None if the full images differ in size."""
        return self._image_size

    def __len__(self) -> int:
        return len(self.records)

    def sample_name(self, index: int) -> str:
        """Name the sample after its image file, without the ending."""
        return self.records[index].name

    def load(self, index: int) -> RawSample:
        """Read one sample. Raises as read_image and read_mask, and ValueError if the sizes differ."""
        record = self.records[index]
        image = read_image(record.image)
        masks = [
            read_mask(path, self.num_classes, self.void) if path else None for path in (record.mask, record.pseudo)
        ]
        for path, mask in zip((record.mask, record.pseudo), masks):
            if mask is not None and mask.shape != image.shape[1:]:
                raise ValueError(
                    f"image {record.image} has {image.shape[2]}x{image.shape[1]} pixels, but its mask {path} "
                    f"has {mask.shape[1]}x{mask.shape[0]} (width x height); make them the same size"
                )
        label, pseudo = masks
        assert label is not None  # every record has a mask
        return image, label, pseudo

"""Datasets by name: build_dataset("synthetic", ...) and others, all with the same sample dict."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from segmentation.datasets.base import SegmentationDataset
from segmentation.datasets.camvid import CAMVID_NAMES, build_camvid
from segmentation.datasets.files import FileDataset
from segmentation.datasets.folder import build_folder
from segmentation.datasets.predict import ImagesToPredict
from segmentation.datasets.synthetic import SYNTHETIC_NAMES, SyntheticShapes
from segmentation.datasets.voc import VOC_NAMES, build_voc

# Those that are read from files: what builds a split of one.
BUILDERS: dict[str, Callable[[Path, str, int, int], FileDataset]] = {
    "folder": build_folder,
    "voc": build_voc,
    "voc_scribble": partial(build_voc, scribble=True),
    "camvid": build_camvid,
}
DATASETS = ("synthetic", "synthetic_scribble", *BUILDERS)
CLASS_NAMES: dict[str, list[str]] = {
    "synthetic": SYNTHETIC_NAMES,
    "synthetic_scribble": SYNTHETIC_NAMES,
    "folder": [],  # not known: default_num_classes raises, build_dataset names them class 0, class 1 ...
    "voc": VOC_NAMES,
    "voc_scribble": VOC_NAMES,
    "camvid": CAMVID_NAMES,
}

__all__ = [
    "CLASS_NAMES",
    "DATASETS",
    "ImagesToPredict",
    "SegmentationDataset",
    "build_dataset",
    "default_num_classes",
]


def _check_name(name: str) -> None:
    if name not in DATASETS:
        raise ValueError(f"unknown dataset {name!r}; use one of {', '.join(DATASETS)}")


def default_num_classes(name: str) -> int:
    """Return the number of classes of a dataset. Raises ValueError for `folder`, which can have any."""
    _check_name(name)
    if not CLASS_NAMES[name]:
        raise ValueError(f"dataset {name!r} has no fixed number of classes; pass --numclasses")
    return len(CLASS_NAMES[name])


def build_dataset(
    name: str,
    root: str | Path | None,
    split: str,
    num_classes: int,
    crop_size: int = 0,
    seed: int = 0,
    length: int | None = None,
) -> SegmentationDataset:
    """Build one split ("train" or "val") of a dataset; see DATASETS for the names.

    crop_size: pixels, side of a training crop, 0 = the dataset's own; the synthetic images have this size
    themselves. seed and length (number of images) are for the synthetic datasets, which need no root.
    Raises ValueError for a wrong argument and FileNotFoundError for missing folders, lists, images or
    masks.
    """
    _check_name(name)
    if crop_size < 0:
        raise ValueError(f"crop_size must be a number of pixels, got {crop_size}; use 0 for the dataset's own")
    if name.startswith("synthetic"):
        return SyntheticShapes(split, num_classes, crop_size, seed, length, scribble=name.endswith("scribble"))
    if length is not None:
        raise ValueError(
            f"length is {length}, but dataset {name!r} is read from files; it is for synthetic datasets only"
        )
    if not root or not str(root).strip():
        raise ValueError(f"dataset {name!r} is read from files, but its folder is {root!r}; pass --dataset_path")
    return BUILDERS[name](Path(root), split, num_classes, crop_size)

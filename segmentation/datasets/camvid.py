"""CamVid in the SegNet layout: train/ trainannot/ val/ valannot/ and, if there, test/ testannot/."""

from __future__ import annotations

from pathlib import Path

from segmentation.datasets.base import check_split
from segmentation.datasets.files import FileDataset, require_folder
from segmentation.datasets.folder import pair_files

CAMVID_NAMES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
CAMVID_VOID = 11
SPLITS = ("train", "val", "test")


def build_camvid(root: Path, split: str, num_classes: int, crop_size: int) -> FileDataset:
    """Build CamVid with its 11 classes; the void class 11 is ignored. The split may also be 'test'."""
    check_split(split, SPLITS)
    require_folder(root, "give the folder that holds train/ and trainannot/ with --dataset_path")
    return FileDataset(
        pair_files(root / split, root / f"{split}annot"),
        split,
        num_classes,
        CAMVID_NAMES,
        crop_size,
        void=CAMVID_VOID,
    )

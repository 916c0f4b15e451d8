"""A folder of images and a folder of masks with the same names."""

from __future__ import annotations

from pathlib import Path

from segmentation.datasets.base import check_split
from segmentation.datasets.files import FileDataset, Record, list_images, require_folder

VAL_EVERY = 5


def pair_files(images: Path, masks: Path) -> list[Record]:
    """Pair each image with masks/<stem>.png. Raises FileNotFoundError for an image without mask."""
    require_folder(images, "the images belong there")
    require_folder(masks, "the masks belong there, one <image name>.png per image")
    present = {path.name for path in masks.iterdir()}
    files = list_images(images)
    missing = [path for path in files if f"{path.stem}.png" not in present]
    if missing:
        raise FileNotFoundError(
            f"image {missing[0]} has no mask {masks / missing[0].stem}.png ({len(missing)} of "
            f"{len(files)} images have none); add the mask or remove the image"
        )
    return [Record(path.stem, path, masks / f"{path.stem}.png") for path in files]


def folder_records(root: Path, split: str) -> list[Record]:
    """List the samples of a split.

    With root/train or root/val, each split is its own folder with images/ and masks/ inside. Without, the
    files of root/images are sorted by name and every fifth (the 5th, 10th ...) is validation.
    """
    require_folder(root, "give the folder that holds images/ and masks/ with --dataset_path")
    if (root / "train").is_dir() or (root / "val").is_dir():
        return pair_files(root / split / "images", root / split / "masks")
    records = pair_files(root / "images", root / "masks")
    if len(records) < VAL_EVERY:
        raise ValueError(
            f"{root / 'images'} holds {len(records)} image(s), too few to split: every {VAL_EVERY}th is "
            "validation; add images, or make the folders train/ and val/ yourself"
        )
    is_val = [(i + 1) % VAL_EVERY == 0 for i in range(len(records))]
    return [record for record, val in zip(records, is_val) if val == (split == "val")]


def build_folder(root: Path, split: str, num_classes: int, crop_size: int) -> FileDataset:
    """Build the `folder` dataset: index masks as PNG (mode 'L' or 'P'), 255 = ignore."""
    check_split(split)
    return FileDataset(folder_records(root, split), split, num_classes, [], crop_size)

"""PASCAL VOC 2012 with dense masks, or with the scribbles of ScribbleSup as training labels."""

from __future__ import annotations

from pathlib import Path

from segmentation.datasets.base import check_split
from segmentation.datasets.files import FileDataset, Record, require_folder

VOC_NAMES = [
    "background",
    "aeroplane",
    "bicycle",
    "bird",
    "boat",
    "bottle",
    "bus",
    "car",
    "cat",
    "chair",
    "cow",
    "diningtable",
    "dog",
    "horse",
    "motorbike",
    "person",
    "pottedplant",
    "sheep",
    "sofa",
    "train",
    "tvmonitor",
]
CROP_SIZE = 321
SCRIBBLES = "pascal_2012_scribble"
PSEUDO_LABELS = "pseudo_labels"


def find_voc(root: Path) -> Path:
    """Return the folder that holds JPEGImages: root itself, root/VOC2012 or root/VOCdevkit/VOC2012."""
    require_folder(root, "give the VOC2012 folder or its parent with --dataset_path")
    for folder in (root, root / "VOC2012", root / "VOCdevkit" / "VOC2012"):
        if (folder / "JPEGImages").is_dir():
            return folder
    raise FileNotFoundError(
        f"folder {root} holds no JPEGImages, nor does VOC2012 in it; give the VOC2012 folder or its "
        "parent with --dataset_path"
    )


def read_list(voc: Path, names: tuple[str, ...]) -> tuple[Path, list[str]]:
    """Read the first list of ImageSets/Segmentation that exists; return its path and the image ids.

    Lines may be ids, or the 'image mask' pairs of the augmented lists. Raises if there is no list or it is
    empty.
    """
    folder = voc / "ImageSets" / "Segmentation"
    for name in names:
        path = folder / f"{name}.txt"
        if path.is_file():
            ids = [Path(line.split()[0]).stem for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
            if not ids:
                raise ValueError(f"list {path} is empty; write one image id per line")
            return path, ids
    raise FileNotFoundError(
        f"list {folder / names[-1]}.txt does not exist; it names the images of the split, one id per line"
    )


def _optional_folder(name: str, *parents: Path) -> Path | None:
    return next((parent / name for parent in parents if (parent / name).is_dir()), None)


def _check_files(list_path: Path, ids: list[str], folder: Path, suffix: str) -> None:
    # One listing instead of one stat per file: the augmented list has 10582 entries.
    present = {path.name for path in folder.iterdir()}
    missing = [name for name in ids if name + suffix not in present]
    if missing:
        raise FileNotFoundError(
            f"{folder / missing[0]}{suffix} does not exist, but {list_path} lists {missing[0]} "
            f"({len(missing)} of {len(ids)} entries have no file); add the file or remove the entry"
        )


def voc_records(root: Path, split: str, scribble: bool = False) -> list[Record]:
    """List the samples of a split. Raises FileNotFoundError for a list entry without file.

    Training uses train_aug.txt if it is there together with SegmentationClassAug (or with scribbles), else
    train.txt.
    """
    voc = find_voc(root)
    aug = voc / "SegmentationClassAug"
    masks = aug if aug.is_dir() else voc / "SegmentationClass"
    pseudo = None
    if scribble and split == "train":
        found = _optional_folder(SCRIBBLES, voc, root)
        masks = require_folder(found or voc / SCRIBBLES, "the scribbles belong there, one <image id>.png per image")
        pseudo = _optional_folder(PSEUDO_LABELS, voc, root)
    require_folder(masks, "the masks belong there, one <image id>.png per image")
    has_aug = split == "train" and (scribble or masks == aug)
    list_path, ids = read_list(voc, ("train_aug", "trainaug", "train") if has_aug else (split,))
    _check_files(list_path, ids, voc / "JPEGImages", ".jpg")
    for folder in filter(None, (masks, pseudo)):
        _check_files(list_path, ids, folder, ".png")
    return [
        Record(
            name,
            voc / "JPEGImages" / f"{name}.jpg",
            masks / f"{name}.png",
            pseudo / f"{name}.png" if pseudo else None,
        )
        for name in ids
    ]


def build_voc(root: Path, split: str, num_classes: int, crop_size: int, scribble: bool = False) -> FileDataset:
    """Build VOC 2012; with `scribble`, training labels are strokes (rest 255), validation stays dense."""
    check_split(split)
    return FileDataset(voc_records(root, split, scribble), split, num_classes, VOC_NAMES, crop_size or CROP_SIZE)

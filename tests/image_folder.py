"""A folder of few and small images with masks, for tests that train the reference project as a user starts it.

The synthetic dataset has 320 images per epoch: seconds of arithmetic per process that show nothing more.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SIZE, CLASSES = 32, 3
VOID = 255


def make_images(folder: Path, number_to_train: int) -> Path:
    """Write images of 32 x 32 pixels with masks of three classes, every fifth of them for validation.

    A part of each mask does not count, another one from image to image.
    """
    random = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for number in range(number_to_train * 5 // 4):
        image = random.integers(0, 255, (SIZE, SIZE, 3), dtype=np.uint8)
        mask = random.integers(0, CLASSES, (SIZE, SIZE), dtype=np.uint8)
        mask[: random.integers(0, SIZE // 2)] = VOID
        Image.fromarray(image).save(folder / "images" / f"{number:03d}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{number:03d}.png")
    return folder


def folder_options(folder: Path) -> list[str]:
    """Return the options with which train.py trains on such a folder."""
    return ["--dataset", "folder", "--numclasses", str(CLASSES), "--dataset_path", str(folder)]

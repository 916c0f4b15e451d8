"""The images of a folder, without labels, for prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from segmentation.datasets.files import list_images, read_image, require_folder
from segmentation.transforms import normalize


class ImagesToPredict(Dataset[dict[str, Any]]):
    """Samples dict(image (3, H, W) float32 normalised, name, path) of all images in a folder, sorted by name."""

    def __init__(self, folder: str | Path) -> None:
        if not str(folder):
            raise ValueError("the folder of images to predict is empty ('')")
        self.paths = list_images(require_folder(Path(folder), "give a folder of images to predict"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.paths[index]
        return {"image": normalize(read_image(path)), "name": path.stem, "path": str(path)}

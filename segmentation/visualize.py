"""Colours for class indices: palette PNGs, colour pictures and the panels for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Union

import numpy as np
import torch
from PIL import Image
from torchvision.utils import make_grid

from segmentation.transforms import denormalize

ArrayLike = Union[torch.Tensor, np.ndarray]


def palette(num_classes: int) -> np.ndarray:
    """Return the PASCAL VOC colours of the first classes, (C, 3) uint8; the 256th is that of ignored pixels.

    Bit k of a class index goes to bit 7 - k // 3 of channel k % 3 (the colour map of the VOC development
    kit).
    """
    if not 0 <= num_classes <= 256:
        raise ValueError(f"num_classes must be between 0 and 256, got {num_classes}; a palette has 256 entries")
    index = np.arange(num_classes)
    colors = np.zeros((num_classes, 3), dtype=np.uint8)
    for bit in range(8):
        colors[:, bit % 3] |= (((index >> bit) & 1) << (7 - bit // 3)).astype(np.uint8)
    return colors


def _to_index_array(mask: ArrayLike) -> np.ndarray:
    array = mask.detach().cpu().numpy() if isinstance(mask, torch.Tensor) else np.asarray(mask)
    if array.ndim != 2:
        raise ValueError(f"a mask must be (H, W), got shape {array.shape}; pass one image of the batch at a time")
    if array.size and not (array.min() >= 0 and array.max() <= 255):
        raise ValueError(f"mask values must be 0..255, got {array.min()}..{array.max()}; pass class indices")
    return np.ascontiguousarray(array.astype(np.uint8))


def colorize(mask: ArrayLike) -> Image.Image:
    """Paint a mask (H, W) of class indices with the VOC colours, as an 'RGB' image; 255 is ivory."""
    return Image.fromarray(palette(256)[_to_index_array(mask)])


def save_index_png(mask: ArrayLike, path: str | Path) -> None:
    """Write a mask (H, W) as a 'P' mode PNG: values are class indices, the palette has the VOC colours."""
    image = Image.fromarray(_to_index_array(mask))
    image.putpalette(palette(256).tobytes())
    image.save(path, format="PNG")  # retrofit: ignore[RF406]


def panel(image: torch.Tensor, label: torch.Tensor, prediction: torch.Tensor) -> torch.Tensor:
    """Put image (3, H, W), label and prediction (H, W) side by side, as uint8 (3, H, 3W)."""
    if image.shape[1:] != label.shape or label.shape != prediction.shape:
        raise ValueError(
            f"image {tuple(image.shape)}, label {tuple(label.shape)} and prediction "
            f"{tuple(prediction.shape)} must have one size; resize the prediction to the label"
        )
    photo = denormalize(image.detach().cpu().float()).mul(255.0).round().to(torch.uint8)
    colors = torch.from_numpy(palette(256))
    masks = [colors[torch.from_numpy(_to_index_array(mask)).long()].permute(2, 0, 1) for mask in (label, prediction)]
    return torch.cat([photo, *masks], dim=2)


def panel_grid(images: torch.Tensor, labels: torch.Tensor, predictions: torch.Tensor) -> torch.Tensor:
    """Return one picture, uint8 (3, H', W'), with a row per sample: image, label and prediction, white lines between.

    images: (N, 3, H, W); labels, predictions: (N, H, W).
    """
    samples = (panel(*sample) for sample in zip(images, labels, predictions))
    tiles = [tile for sample in samples for tile in sample.chunk(3, dim=2)]
    return make_grid(tiles, nrow=3, padding=2, pad_value=255)

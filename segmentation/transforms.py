"""Joint augmentation of an image and its masks, on uint8 tensors, with torch's global random generator only.

The order is what makes it fast: the source window of a crop is cut out first, only that window is resized,
and brightness, contrast, saturation, scaling to float and normalisation are one 3x3 matrix product at the
very end.
"""

from __future__ import annotations

import torch
from torch import nn
from torchvision import tv_tensors
from torchvision.transforms import v2

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GRAY_WEIGHTS = (0.2989, 0.587, 0.114)  # ITU-R BT.601 luma, as torchvision's rgb_to_grayscale
FILL_IMAGE = tuple(round(255 * value) for value in IMAGENET_MEAN)
FILL_MASK = 255  # the ignore index: padding never counts
MIN_SIDE = 48  # pixels; see scale_limits


def scale_limits(side: int, crop_size: int, low: float = 0.5, high: float = 2.0) -> tuple[float, float]:
    """Narrow the scale range [low, high] where images or crops are small.

    `side` is the shorter side of the image in pixels. An image is never shrunk below 48 pixels (a network
    of stride 16 would see less than 3x3 positions), and a crop never shows less than 48 source pixels.
    """
    return max(low, min(1.0, MIN_SIDE / side)), min(high, max(1.0, crop_size / MIN_SIDE))


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * float(torch.rand(()))


def _randint(high: int) -> int:
    """Draw from 0..high, both included."""
    return int(torch.randint(high + 1, ())) if high > 0 else 0


def _nearest(mask: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Resize (..., H, W) to `size` by the nearest pixel centre.

    torchvision's nearest rounds down, which moves a mask by up to half a source pixel against the bilinear
    image.
    """
    for dim, out in zip((-2, -1), size):
        length = mask.shape[dim]
        if length != out:
            source = ((torch.arange(out) * 2 + 1) * length).div_(2 * out, rounding_mode="floor")
            mask = mask.index_select(dim, source)
    return mask


class RandomScaleCrop(nn.Module):
    """Rescale by a random factor, pad where too small, and cut a random crop_size x crop_size window.

    Takes and returns (image (3, H, W) uint8 tv_tensors.Image, masks (H, W) uint8 tv_tensors.Mask ...); an
    entry that is None stays None. Bilinear with antialiasing for the image, nearest for masks; padding is
    the mean colour and 255.
    """

    def __init__(self, crop_size: int, scale: tuple[float, float] = (0.5, 2.0)) -> None:
        super().__init__()
        if crop_size < 1:
            raise ValueError(f"crop_size must be a positive number of pixels, got {crop_size}; use for example 64")
        if not 0 < scale[0] <= scale[1]:
            raise ValueError(f"scale must be (low, high) with 0 < low <= high, got {scale}; use for example (0.5, 2.0)")
        self.crop_size = crop_size
        self.scale = scale

    def forward(self, image: tv_tensors.Image, *masks: tv_tensors.Mask | None) -> tuple:
        height, width = image.shape[-2:]
        crop = self.crop_size
        scale = _uniform(*scale_limits(min(height, width), crop, *self.scale))
        # The window in source pixels, and the size it has after scaling: smaller than the crop only if the
        # image is.
        source = [min(side, max(1, round(crop / scale))) for side in (height, width)]
        target = [
            crop if part < side else min(crop, max(1, round(part * scale)))
            for part, side in zip(source, (height, width))
        ]
        top, left = _randint(height - source[0]), _randint(width - source[1])
        pad_top, pad_left = _randint(crop - target[0]), _randint(crop - target[1])

        def apply(tensor: torch.Tensor) -> torch.Tensor:
            window = tensor[..., top : top + source[0], left : left + source[1]]
            is_image = isinstance(tensor, tv_tensors.Image)
            if source != target:
                window = (
                    v2.functional.resize(window, target, antialias=True)
                    if is_image
                    else _nearest(window, (target[0], target[1]))
                )
            if target == [crop, crop]:
                return tv_tensors.wrap(window, like=tensor)
            canvas = window.new_full((*window.shape[:-2], crop, crop), FILL_MASK)
            if is_image:
                canvas.copy_(torch.tensor(FILL_IMAGE, dtype=canvas.dtype).view(3, 1, 1).expand_as(canvas))
            canvas[..., pad_top : pad_top + target[0], pad_left : pad_left + target[1]] = window
            return tv_tensors.wrap(canvas, like=tensor)

        return tuple(None if tensor is None else apply(tensor) for tensor in (image, *masks))


class ColorJitterNormalize(nn.Module):
    """Jitter brightness, contrast and saturation, scale to float and normalise, in one matrix product.

    Each of the four is affine in the colour of a pixel, so their chain is one 3x3 matrix and an offset.
    With factors in [1 - x, 1 + x] it equals torchvision's adjust_brightness, adjust_contrast,
    adjust_saturation and normalize in this order, except that values are clamped to the range of a colour
    once, at the end. Jitter 0 only normalises.
    """

    def __init__(self, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0) -> None:
        super().__init__()
        self.jitter = (brightness, contrast, saturation)
        self.gray = torch.tensor([GRAY_WEIGHTS])
        mean, std = torch.tensor(IMAGENET_MEAN).view(3, 1), torch.tensor(IMAGENET_STD).view(3, 1)
        self.gain = 1.0 / (255.0 * std)
        self.offset = -mean / std
        self.ceiling = (1.0 - mean) / std

    def color_matrix(self, mean_color: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the three factors; return the matrix (3, 3) and offset (3, 1) for colours in 0..255."""
        brightness, contrast, saturation = (_uniform(1.0 - jitter, 1.0 + jitter) for jitter in self.jitter)
        mix = torch.eye(3).mul_(saturation).add_((1.0 - saturation) * self.gray)
        pivot = (1.0 - contrast) * brightness * (self.gray @ mean_color)
        return mix * (brightness * contrast), mix.sum(dim=1, keepdim=True) * pivot

    def forward(self, image: tv_tensors.Image, *masks: tv_tensors.Mask | None) -> tuple:
        pixels = image.as_subclass(torch.Tensor).reshape(3, -1).float()
        if any(self.jitter):
            matrix, offset = self.color_matrix(pixels.mean(dim=1, keepdim=True))
            pixels = torch.addmm(self.offset + offset * self.gain, matrix * self.gain, pixels)
            pixels = pixels.clamp_(self.offset, self.ceiling)
        else:
            pixels = pixels.mul_(self.gain).add_(self.offset)
        return (tv_tensors.wrap(pixels.view(image.shape), like=image), *masks)


class ToPlainTensors(nn.Module):
    """Turn a sample into plain tensors of their own memory; masks int64, a missing pseudo-label = label.

    Plain, because collating tensor subclasses and sending them between loader processes is slow.
    """

    def forward(
        self, image: tv_tensors.Image, label: tv_tensors.Mask, pseudo: tv_tensors.Mask | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        label_int = label.as_subclass(torch.Tensor).to(torch.int64, copy=True)
        pseudo_int = (
            label_int.clone() if pseudo is None else pseudo.as_subclass(torch.Tensor).to(torch.int64, copy=True)
        )
        return image.as_subclass(torch.Tensor).contiguous(), label_int, pseudo_int


def train_transform(crop_size: int) -> v2.Compose:
    """Build the training augmentation: (image, label, pseudo or None) uint8 -> square crops.

    Returns image (3, crop, crop) float32 normalised, label and pseudo (crop, crop) int64. All randomness
    comes from torch's global generator, so that torch.manual_seed decides it and its state can be saved and
    restored.
    """
    return v2.Compose(
        [
            RandomScaleCrop(crop_size),
            v2.RandomHorizontalFlip(0.5),
            ColorJitterNormalize(brightness=0.3, contrast=0.3, saturation=0.3),
            ToPlainTensors(),
        ]
    )


def eval_transform() -> v2.Compose:
    """Build the evaluation transform: the full image, normalised; nothing random."""
    return v2.Compose([ColorJitterNormalize(), ToPlainTensors()])


def normalize(image: torch.Tensor) -> torch.Tensor:
    """Scale an image (3, H, W) uint8 to float32 with ImageNet mean and standard deviation."""
    return ColorJitterNormalize()(tv_tensors.Image(image))[0].as_subclass(torch.Tensor)


def denormalize(image: torch.Tensor) -> torch.Tensor:
    """Undo the normalisation: image (..., 3, H, W) float -> float in [0, 1], clamped."""
    mean = torch.tensor(IMAGENET_MEAN, dtype=image.dtype, device=image.device).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD, dtype=image.dtype, device=image.device).view(3, 1, 1)
    return (image * std + mean).clamp_(0.0, 1.0)

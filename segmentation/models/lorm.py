"""Localization rectification: pull misplaced foreground features towards the rest of the foreground."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segmentation.losses import IGNORE_INDEX
from segmentation.precision import full_precision

BACKGROUND = 0


class LocalizationRectification(nn.Module):
    """The localization rectification module (LoRM) of "Scribble Hides Class", AAAI 2024, arXiv 2402.17555.

    Every foreground position of the last feature map is rebuilt as a weighted mean of all foreground
    positions. The weights are the softmax of the cosine similarity of its query and their keys (two 1x1
    convolutions), the loss is the mean squared difference between rebuilt and original features. Used in
    training only.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, channels // 8, kernel_size=1, bias=False)
        self.key = nn.Conv2d(channels, channels // 8, kernel_size=1, bias=False)

    def forward(self, features: Tensor, pseudo: Tensor) -> Tensor:
        """Return the loss of each image, (N,) float32.

        features: (N, channels, h, w) float; pseudo: (N, H, W) int64 dense pseudo-label, whose foreground is
        everything but background (0) and IGNORE_INDEX. Background features play no part. An image without
        foreground has a loss of exactly 0 that still depends on every parameter (zero gradient).

        Memory: one (N, h*w, h*w) float32 attention map.
        """
        if pseudo.dim() != 3 or pseudo.shape[0] != features.shape[0]:
            raise ValueError(
                f"pseudo-label of shape {tuple(pseudo.shape)} does not belong to features of shape "
                f"{tuple(features.shape)}; pass one (H, W) label per image: (N, H, W)"
            )
        foreground = foreground_mask(pseudo, features.shape[-2:]).flatten(1)  # (N, h*w)
        query, key = self.query(features).flatten(2), self.key(features).flatten(2)  # (N, channels/8, h*w)
        # Softmax and squared error in full precision: the 8 bits of bf16 are too few for a sum over all positions.
        with torch.autocast(features.device.type, enabled=False):
            original = full_precision(features).flatten(2)  # (N, channels, h*w)
            attention = foreground_attention(full_precision(query), full_precision(key), foreground)
            rebuilt = original @ attention.transpose(1, 2)
            per_position = (rebuilt - original).square().mean(dim=1)
            count = foreground.sum(dim=1).clamp(min=1)  # without foreground: 0 / 1, not 0 / 0
            return (per_position * foreground).sum(dim=1) / count


def foreground_mask(pseudo: Tensor, size: Sequence[int]) -> Tensor:
    """Return where the pseudo-label (N, H, W) is foreground at the nearest pixel, (N, h, w) bool."""
    # float32 holds every class index exactly; interpolate takes no int64.
    sampled = F.interpolate(pseudo.unsqueeze(1).float(), size=tuple(size), mode="nearest-exact").squeeze(1)
    return (sampled != BACKGROUND) & (sampled != IGNORE_INDEX)


def foreground_attention(query: Tensor, key: Tensor, foreground: Tensor) -> Tensor:
    """Return the attention (N, P, P) of each position (rows) over the foreground positions (columns).

    query, key: (N, C, P) float32; foreground: (N, P) bool. A row sums to 1 and is 0 on the background; in an
    image without foreground it is uniform: finite, for the caller to multiply by 0.
    """
    similarity = F.normalize(query, dim=1).transpose(1, 2) @ F.normalize(key, dim=1)
    # The lowest finite number, not -inf: a softmax over nothing but -inf is nan.
    masked = similarity.masked_fill(~foreground.unsqueeze(1), torch.finfo(similarity.dtype).min)
    return masked.softmax(dim=-1)

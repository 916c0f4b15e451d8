"""A Swin transformer with the all-MLP head of SegFormer, in five sizes."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import SwinTransformer

from segmentation.precision import full_precision


class SwinSize(NamedTuple):
    """The widths and depths of a Swin transformer's four stages, and of the head."""

    embed_dim: int
    depths: tuple[int, int, int, int]
    num_heads: tuple[int, int, int, int]
    head_width: int


# By --layers, graded as the ResNets are: two small ones, then Swin-T, -S and -B (arXiv 2103.14030, section 3.3).
SWIN_SIZES = {
    18: SwinSize(32, (2, 2, 2, 2), (1, 2, 4, 8), 64),
    34: SwinSize(64, (2, 2, 4, 2), (2, 4, 8, 16), 128),
    50: SwinSize(96, (2, 2, 6, 2), (3, 6, 12, 24), 256),
    101: SwinSize(96, (2, 2, 18, 2), (3, 6, 12, 24), 256),
    152: SwinSize(128, (2, 2, 18, 2), (4, 8, 16, 32), 256),
}


class SwinSegmenter(nn.Module):
    """Swin encoder of torchvision (layer class SwinTransformerBlock) and an all-MLP decoder (arXiv 2105.15203)."""

    def __init__(self, num_classes: int, size: SwinSize) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.has_lorm = False
        # Without stochastic depth: its random numbers would depend on how a batch is split up.
        swin = SwinTransformer(
            [4, 4], size.embed_dim, list(size.depths), list(size.num_heads), [7, 7], stochastic_depth_prob=0.0
        )
        self.features = swin.features
        widths = [size.embed_dim * 2**stage for stage in range(4)]
        self.norms = nn.ModuleList(nn.LayerNorm(width) for width in widths)
        self.projections = nn.ModuleList(nn.Linear(width, size.head_width) for width in widths)
        self.fuse = nn.Sequential(nn.Conv2d(4 * size.head_width, size.head_width, kernel_size=1), nn.ReLU(inplace=True))
        self.classifier = nn.Conv2d(size.head_width, num_classes, kernel_size=1)

    def forward(self, image: Tensor, pseudo: Tensor | None = None) -> Tensor:
        """Return float32 logits (N, num_classes, H, W) for images (N, 3, H, W) of any size; `pseudo` is not needed."""
        stages = []
        features = image
        for index, part in enumerate(self.features):  # patches, stage, merging, stage, merging, ...
            features = part(features)
            if index % 2:
                stages.append(features)
        size = stages[0].shape[1:3]
        projected = [
            F.interpolate(projection(norm(stage)).permute(0, 3, 1, 2), size=size, mode="bilinear", align_corners=False)
            for stage, norm, projection in zip(stages, self.norms, self.projections)
        ]
        logits = full_precision(self.classifier(self.fuse(torch.cat(projected, dim=1))))
        return F.interpolate(logits, size=image.shape[-2:], mode="bilinear", align_corners=False)

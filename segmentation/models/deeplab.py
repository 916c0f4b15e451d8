"""DeepLabV2 and DeepLabV3+ heads, and the model that puts one on a backbone."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from segmentation.models.backbone import ResNetBackbone
from segmentation.models.lorm import LocalizationRectification
from segmentation.precision import full_precision


class DeepLab(nn.Module):
    """A ResNet backbone, a segmentation head and, in the lorm models, localization rectification."""

    def __init__(self, backbone: ResNetBackbone, head: nn.Module, num_classes: int, has_lorm: bool) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.has_lorm = has_lorm
        self.backbone = backbone
        self.head = head
        self.lorm = LocalizationRectification(backbone.high_channels) if has_lorm else None

    def forward(self, image: Tensor, pseudo: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Return the logits, and the per-image loss of the localization rectification if there is one.

        image: (N, 3, H, W) float; pseudo: (N, H, W) int64 dense pseudo-label. Result, in float32: the pair
        `(logits (N, num_classes, H, W), lorm (N,))` if `has_lorm` and `pseudo` is given, else logits alone.

        Raises ValueError if `pseudo` is not of the image's size.
        """
        low, high = self.backbone(image)
        # float32 before the upsampling: it is a mean of neighbours, and the loss wants float32 anyway.
        logits = F.interpolate(
            full_precision(self.head(low, high)), size=image.shape[-2:], mode="bilinear", align_corners=False
        )
        if self.lorm is None or pseudo is None:
            return logits
        if pseudo.shape != (image.shape[0], *image.shape[2:]):
            raise ValueError(
                f"pseudo-label of shape {tuple(pseudo.shape)} does not belong to images of shape "
                f"{tuple(image.shape)}; pass one label of the same height and width per image"
            )
        return logits, self.lorm(high, pseudo)


class DeepLabV2Head(nn.Module):
    """Classify with parallel dilated 3x3 convolutions and add up their logits (arXiv 1606.00915)."""

    RATES = (6, 12, 18, 24)  # for output stride 8

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Conv2d(in_channels, num_classes, kernel_size=3, padding=rate, dilation=rate) for rate in self.RATES
        )
        for branch in self.branches:
            assert isinstance(branch, nn.Conv2d) and branch.bias is not None
            nn.init.normal_(branch.weight, std=0.01)
            nn.init.zeros_(branch.bias)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        """Return logits at the size of `high`; `low` is unused: all heads have the same signature."""
        return torch.stack([branch(high) for branch in self.branches]).sum(dim=0)


class DeepLabV3PlusHead(nn.Module):
    """ASPP, then a decoder that adds low-level detail (arXiv 1802.02611).

    Without the dropout of the paper: its random numbers would depend on how a batch is split up.
    """

    def __init__(self, backbone: ResNetBackbone, num_classes: int) -> None:
        super().__init__()
        # The narrow widths keep a small demo quick on a CPU.
        width, low_width, decoder_width = (256, 48, 256) if backbone.is_bottleneck else (128, 32, 64)
        rates = tuple(rate * 16 // backbone.output_stride for rate in (6, 12, 18))
        self.aspp = ASPP(backbone.high_channels, width, rates)
        self.low_projection = conv_bn_relu(backbone.low_channels, low_width, kernel_size=1)
        self.decoder = nn.Sequential(
            conv_bn_relu(width + low_width, decoder_width, kernel_size=3),
            conv_bn_relu(decoder_width, decoder_width, kernel_size=3),
        )
        self.classifier = nn.Conv2d(decoder_width, num_classes, kernel_size=1)

    def forward(self, low: Tensor, high: Tensor) -> Tensor:
        """Return logits (N, num_classes, H/4, W/4) from the backbone's low- and high-level features."""
        context = F.interpolate(self.aspp(high), size=low.shape[-2:], mode="bilinear", align_corners=False)
        return self.classifier(self.decoder(torch.cat([context, self.low_projection(low)], dim=1)))


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: 1x1, three dilated 3x3 and a whole-image branch (arXiv 1706.05587)."""

    def __init__(self, in_channels: int, width: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.branches = nn.ModuleList([conv_bn_relu(in_channels, width, kernel_size=1)])
        self.branches.extend(conv_bn_relu(in_channels, width, kernel_size=3, dilation=rate) for rate in rates)
        # No BatchNorm here: with one value per image and channel it could not train on a batch of 1.
        self.pooling = nn.Sequential(nn.Conv2d(in_channels, width, kernel_size=1), nn.ReLU(inplace=True))
        self.projection = conv_bn_relu((len(rates) + 2) * width, width, kernel_size=1)

    def forward(self, features: Tensor) -> Tensor:
        """Return features (N, width, h, w) that see several scales and the whole image."""
        # mean and expand, not AdaptiveAvgPool2d and interpolate: their backward is deterministic everywhere.
        pooled = self.pooling(features.mean(dim=(2, 3), keepdim=True)).expand(-1, -1, *features.shape[-2:])
        return self.projection(torch.cat([*(branch(features) for branch in self.branches), pooled], dim=1))


def conv_bn_relu(in_channels: int, out_channels: int, kernel_size: int, dilation: int = 1) -> nn.Sequential:
    """Return a convolution that keeps height and width, BatchNorm and ReLU."""
    padding = dilation * (kernel_size // 2)
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, kernel_size, padding=padding, dilation=dilation, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )

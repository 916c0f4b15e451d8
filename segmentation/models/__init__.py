"""Segmentation models by name."""

from __future__ import annotations

from torch import nn

from segmentation.models.backbone import LAYERS, ResNetBackbone
from segmentation.models.deeplab import DeepLab, DeepLabV2Head, DeepLabV3PlusHead
from segmentation.models.pretrained import load_backbone_weights
from segmentation.models.swin import SWIN_SIZES, SwinSegmenter

MODEL_TYPES = ("deeplabv3p", "deeplabv2", "deeplabv3p_lorm", "res50_ASPP_lorm", "swin_mlp")

__all__ = ["LAYERS", "MODEL_TYPES", "build_model"]


def build_model(model_type: str, layers: int, num_classes: int, model_path: str = "none") -> nn.Module:
    """Build a segmentation model on the CPU, in training mode.

    model_type: `deeplabv3p` (output stride 16), `deeplabv2` (8), or one of them with the localization
    rectification module: `deeplabv3p_lorm`, `res50_ASPP_lorm` (a deeplabv2; the name is historical, it obeys
    `layers`); or `swin_mlp`, a Swin transformer with an all-MLP head.
    layers: depth of the ResNet; of `swin_mlp` the size, see `SWIN_SIZES`.
    model_path: weights of the backbone, "none", "imagenet" or a file, see `load_backbone_weights`; `swin_mlp` starts
    from random weights.

    Raises ValueError for an unknown model type or depth or fewer than one class; and what
    `load_backbone_weights` raises.
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(f"there is no model_type {model_type!r}; use one of {', '.join(MODEL_TYPES)}")
    if num_classes < 1:
        raise ValueError(f"num_classes is {num_classes}; a model needs at least 1")
    if model_type == "swin_mlp":
        if model_path != "none":
            raise ValueError(f"swin_mlp has no pretrained backbone, got model_path {model_path!r}; use none")
        if layers not in SWIN_SIZES:
            raise ValueError(f"swin_mlp has no size for {layers!r} layers; use one of {tuple(SWIN_SIZES)}")
        return SwinSegmenter(num_classes, SWIN_SIZES[layers])
    is_v3plus = model_type.startswith("deeplabv3p")
    backbone = ResNetBackbone(layers, output_stride=16 if is_v3plus else 8)
    load_backbone_weights(backbone, layers, model_path)
    head = DeepLabV3PlusHead(backbone, num_classes) if is_v3plus else DeepLabV2Head(backbone.high_channels, num_classes)
    return DeepLab(backbone, head, num_classes, has_lorm=model_type.endswith("_lorm"))

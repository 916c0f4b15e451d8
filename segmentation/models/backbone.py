"""torchvision ResNets as feature extractors, with dilation instead of stride in the last stages."""

from __future__ import annotations

from torch import Tensor, nn
from torchvision.models import get_model

LAYERS = (18, 34, 50, 101, 152)

# First channel count: stage 1 (stride 4); second: stage 4.
_BASIC_CHANNELS = (64, 512)
_BOTTLENECK_CHANNELS = (256, 2048)


class ResNetBackbone(nn.Module):
    """A ResNet without its classifier that returns low-level (stride 4) and high-level features.

    Parameters carry torchvision's names, so torchvision's state_dicts (less `fc.*`) load as they are.
    """

    def __init__(self, layers: int, output_stride: int) -> None:
        """Build ResNet-`layers`, randomly initialised, with `output_stride` 8, 16 or 32 at its last stage.

        Raises ValueError for another depth or another stride.
        """
        super().__init__()
        if layers not in LAYERS:
            raise ValueError(f"there is no ResNet with {layers!r} layers; use one of {LAYERS}")
        if output_stride not in (8, 16, 32):
            raise ValueError(f"output_stride {output_stride!r} is not supported; use 8, 16 or 32")
        resnet = get_model(f"resnet{layers}", weights=None)
        self.is_bottleneck = layers >= 50
        channels = _BOTTLENECK_CHANNELS if self.is_bottleneck else _BASIC_CHANNELS
        self.low_channels, self.high_channels = channels
        self.output_stride = output_stride
        self.conv1 = resnet.conv1
        self.bn1 = resnet.bn1
        self.relu = resnet.relu
        self.maxpool = resnet.maxpool
        self.layer1 = resnet.layer1
        self.layer2 = resnet.layer2
        self.layer3 = resnet.layer3
        self.layer4 = resnet.layer4
        if output_stride == 8:
            replace_stride_with_dilation(self.layer3, dilation_before=1)
            replace_stride_with_dilation(self.layer4, dilation_before=2)
        elif output_stride == 16:
            replace_stride_with_dilation(self.layer4, dilation_before=1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Return the features of stage 1, at a quarter of the image's size, and of stage 4.

        image: (N, 3, H, W) float; result: (N, low_channels, H/4, W/4) and
        (N, high_channels, H/output_stride, W/output_stride), sizes rounded up.
        """
        stem = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        low = self.layer1(stem)
        high = self.layer4(self.layer3(self.layer2(low)))
        return low, high


def replace_stride_with_dilation(stage: nn.Module, dilation_before: int) -> None:
    """Turn the stride 2 of a ResNet stage into dilation, in place; pretrained weights keep their meaning.

    `dilation_before` is the dilation that reaches the stage: 1, or 2 after a stage already dilated. Every
    second position of the output is exactly that of the strided stage.

    torchvision's own switch refuses BasicBlock (18, 34 layers); editing the convolutions serves all depths.
    """
    dilation = dilation_before
    for conv in stage.modules():  # in forward order: torchvision registers downsample last in a block
        if not isinstance(conv, nn.Conv2d):
            continue
        strided = conv.stride == (2, 2)
        conv.stride = (1, 1)
        if conv.kernel_size == (3, 3):
            conv.dilation = conv.padding = (dilation, dilation)
            if strided:  # it read the finer grid still; what follows it would have read the coarser one
                dilation = 2 * dilation_before

"""Twelve trainings of different kinds, small enough for one core: a model, a batch, the loss and the optimizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[2]))


class Project(NamedTuple):
    model: Callable[[], nn.Module]
    sample: Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # the sample with this number: input, target
    batch: int
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int = 4, is_causal: bool = False) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.is_causal = heads, is_causal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, words: int = 512, width: int = 128, length: int = 64, depth: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.zeros(length, width))
        self.blocks = nn.ModuleList(Block(width, is_causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Vit(nn.Module):
    def __init__(self, width: int = 160, depth: int = 5) -> None:
        super().__init__()
        self.cut, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.zeros(64, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cut(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Lstm(nn.Module):
    def __init__(self, words: int = 400, width: int = 192) -> None:
        super().__init__()
        self.words, self.lstm, self.head = nn.Embedding(words, width), nn.LSTM(width, width, 2), nn.Linear(width, words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(words.t()))[0].transpose(0, 1)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.two(torch.relu(self.one(torch.relu(x))))


class Unet(nn.Module):
    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(nn.Conv2d(width * 2**i, width * 2 ** (i + 1), 3, 2, 1) for i in range(3))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(width * 2 ** (i + 1), width * 2**i, 2, 2) for i in reversed(range(3))
        )
        self.mix = nn.ModuleList(
            nn.Conv2d(width * 2 ** (i + 1), width * 2**i, 3, padding=1) for i in reversed(range(3))
        )
        self.end = nn.Conv2d(width, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = [torch.relu(self.start(x))]
        for layer in self.down:
            kept.append(torch.relu(layer(kept[-1])))
        x = kept.pop()
        for up, mix in zip(self.up, self.mix):
            x = torch.relu(mix(torch.cat([up(x), kept.pop()], 1)))
        return self.end(x)


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.linear(self.norm(x)))


def mlp(width: int, depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), *(Layer(width) for _ in range(depth)), nn.Linear(width, 10))


def resnet() -> nn.Module:
    from torchvision.models.resnet import BasicBlock, ResNet

    model = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    model.layer4, model.fc = nn.Sequential(), nn.Linear(256, 10)
    return model


def mobile() -> nn.Module:
    from torchvision.models import mobilenet_v2

    return mobilenet_v2(width_mult=0.35, num_classes=10)


def segmentation() -> nn.Module:
    """The reference project's own network, in a small size."""
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)["out"]

    return Network()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1), *(Residual(64) for _ in range(4)), nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


def vectors(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((64,), float(number % 7)), torch.tensor(number % 10)


def pictures(size: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda number: (torch.full((3, size, size), float(number % 7)), torch.tensor(number % 10))


def masks(size: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda number: (torch.full((3, size, size), float(number % 7)), torch.full((size, size), number % 4))


def texts(length: int, words: int) -> Callable[[int], tuple[torch.Tensor, torch.Tensor]]:
    return lambda number: (
        torch.arange(number, number + length) % words, torch.arange(number + 1, number + 1 + length) % words
    )  # fmt: skip


PROJECTS = {
    "gpt": Project(Gpt, texts(64, 512), 8),
    "vit": Project(Vit, pictures(32), 8),
    "lstm": Project(Lstm, texts(24, 400), 16),
    "unet": Project(Unet, masks(48), 4),
    "resnet": Project(resnet, pictures(48), 8, torch.optim.SGD),
    "mobilenet": Project(mobile, pictures(48), 8, torch.optim.SGD),
    "segmentation": Project(segmentation, masks(64), 2, torch.optim.SGD),
    "convolutional": Project(convolutional, pictures(32), 16),
    "mlp_deep": Project(lambda: mlp(256, 12), vectors, 128),
    "mlp_wide": Project(lambda: mlp(1000, 3), vectors, 64),  # much to send for little computation
    "mlp_tiny": Project(lambda: mlp(32, 2), vectors, 16),  # next to nothing to do
    "transformer_large_batch": Project(lambda: Gpt(256, 96, 48, 3), texts(48, 256), 32),
}

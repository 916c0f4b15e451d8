"""What the loops of this folder share: the network, its data, and the turns that benchmarks/loop_speed.py gives them.

TURNS names the socket at which a rank waits for its turn, and says when its first step was over.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing.connection import Client, Connection

import torch
from torch import nn
from torch.utils.data import Dataset

CLASSES = 10
_turns: list[Connection] = []
_first_step: list[float] = []  # when it was over, seconds since the epoch


class Images(Dataset):
    """`length` pictures (3, 32, 32) of noise, kept in memory; the label is the class whose pattern is in it."""

    def __init__(self, length: int) -> None:
        generator = torch.Generator().manual_seed(0)
        patterns = torch.randn(CLASSES, 3, 32, 32, generator=generator)
        self.labels = torch.randint(0, CLASSES, (length,), generator=generator)
        self.images = torch.randn(length, 3, 32, 32, generator=generator) + 0.5 * patterns[self.labels]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.images[index], int(self.labels[index])


class Net(nn.Module):
    """Convolutions, then a classifier of `hidden` units: the more of them, the more bytes of gradients.

    Without BatchNorm, of which the loops would make different things: `retrofit` keeps the statistics of the whole
    batch, DDP, Accelerate and Fabric take those of a rank.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        widths = [3, width, width * 2, width * 4]
        blocks = [_block(*pair) for pair in zip(widths, widths[1:])]
        self.features = nn.Sequential(*blocks, nn.Flatten())
        self.classifier = nn.Sequential(nn.Linear(width * 4 * 16, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))
        self.passes = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes == 2:
            _first_step.append(time.time())
        return self.classifier(self.features(images))


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2))


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=640)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--lr", type=float, default=0.02)
    return parser


def wait_for_turn() -> None:
    """Wait at the start of an epoch until the benchmark says that this loop may run; return at once without one."""
    if "TURNS" not in os.environ:
        return
    if not _turns:
        _turns.append(Client(os.environ["TURNS"], "AF_UNIX"))
    _turns[0].send(_first_step)
    _turns[0].recv()

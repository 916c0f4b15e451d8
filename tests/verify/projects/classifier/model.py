"""A small convolutional network."""

import math

from torch import nn


class SmallNet(nn.Module):
    """Classifies images (N, 1, H, W) float into `num_classes`."""

    def __init__(self, num_classes, dropout=0.1):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16 * 3 * 3, num_classes)

    def forward(self, image):
        return self.head(self.dropout(self.features(image).flatten(1)))


def lr_factor(step, steps_per_epoch, epochs, warmup):
    """Return the factor on the learning rate: a cosine over epochs, times a warm-up over a share of all steps."""
    cosine = 0.5 * (1 + math.cos(math.pi * (step // steps_per_epoch) / epochs))
    return cosine * min(1.0, (step + 1) / max(1.0, warmup * steps_per_epoch * epochs))

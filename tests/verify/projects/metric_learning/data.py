"""Points around a few centres; a training sample is two noisy views of one point."""

import torch
from torch.utils.data import Dataset

NUM_CLASSES = 8
NUM_FEATURES = 16


def make_points(num_points, seed):
    """Return points (N, NUM_FEATURES) float and their classes (N,) int64."""
    centres = torch.randn(NUM_CLASSES, NUM_FEATURES, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randint(0, NUM_CLASSES, (num_points,), generator=generator)
    return centres[classes] + 0.8 * torch.randn(num_points, NUM_FEATURES, generator=generator), classes


class TwoViews(Dataset):
    """Two views of every point, each with noise and a few features left out."""

    def __init__(self, points):
        self.points = points

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.view(index), self.view(index)

    def view(self, index):
        point = self.points[index]
        return (point + 0.3 * torch.randn(NUM_FEATURES)) * (torch.rand(NUM_FEATURES) > 0.2)


class Labelled(Dataset):
    """Points with their classes."""

    def __init__(self, points, classes):
        self.points, self.classes = points, classes

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return self.points[index], self.classes[index]

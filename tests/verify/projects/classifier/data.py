"""Images of stripes in four directions, drawn once and kept in a file."""

import math
import os
import random

import torch
from torch.utils.data import Dataset

NUM_CLASSES = 4
SIZE = 12
CLASS_SHARES = (0.4, 0.3, 0.2, 0.1)


def prepare_data(folder, num_samples):
    """Draw the images, unless the folder holds them already, and return the path of their file."""
    path = os.path.join(folder, f"stripes_{num_samples}.pt")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        generator = torch.Generator().manual_seed(0)
        labels = torch.multinomial(torch.tensor(CLASS_SHARES), num_samples, replacement=True, generator=generator)
        images = torch.stack([draw_stripes(int(label), generator) for label in labels])
        torch.save({"images": images, "labels": labels}, path)
    return path


def draw_stripes(label, generator):
    """Return one image (1, SIZE, SIZE) uint8."""
    phase, period = torch.rand(2, generator=generator).tolist()
    angle = math.pi * label / NUM_CLASSES
    y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    wave = torch.sin((x * math.cos(angle) + y * math.sin(angle)) * (1.0 + period) + 2 * math.pi * phase)
    noise = torch.randn(SIZE, SIZE, generator=generator)
    return (127 + 60 * wave + 25 * noise).clamp(0, 255).byte().unsqueeze(0)


def balanced_weights(labels):
    """Return a weight per sample that gives every class the same chance."""
    return (1.0 / torch.bincount(labels, minlength=NUM_CLASSES).clamp(min=1))[labels]


class Stripes(Dataset):
    """The images of a file with their labels."""

    def __init__(self, path):
        content = torch.load(path)
        self.images, self.labels = content["images"], content["labels"]

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].float() / 255 - 0.5, self.labels[index]


class Augmented(Dataset):
    """Turns images around at random, shifts them and adds noise."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        image, label = self.dataset[index]
        if random.random() < 0.5:
            image = image.flip(1, 2)
        shift = torch.randint(-2, 3, (2,)).tolist()
        return image.roll(shift, dims=(1, 2)) + 0.05 * torch.randn(image.shape), label

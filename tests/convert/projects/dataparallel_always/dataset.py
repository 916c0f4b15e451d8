import numpy as np
import torch
from torch.utils.data import Dataset


class PatchDataset(Dataset):
    """12x12 RGB texture patches, 4 texture classes (stripes h / stripes v / checker / flat)"""

    def __init__(self, n, seed, noise=0.35):
        rng = np.random.RandomState(seed)
        self.labels = rng.randint(0, 4, size=n)
        yy, xx = np.mgrid[0:12, 0:12]
        base = [
            np.sin(yy * 1.3),
            np.sin(xx * 1.3),
            ((xx // 2 + yy // 2) % 2) * 2.0 - 1,
            np.zeros((12, 12)),
        ]
        imgs = []
        for l in self.labels:
            color = rng.uniform(0.4, 1.0, size=(3, 1, 1))
            imgs.append(color * base[l][None] + noise * rng.randn(3, 12, 12))
        self.imgs = np.stack(imgs).astype(np.float32)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return torch.from_numpy(self.imgs[i]), int(self.labels[i])

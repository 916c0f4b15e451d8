import numpy as np
import torch
from torch.utils.data import Dataset

MEAN = np.array([0.48, 0.47, 0.44], dtype=np.float32).reshape(3, 1, 1)
STD = np.array([0.25, 0.25, 0.26], dtype=np.float32).reshape(3, 1, 1)


class ToyImages(Dataset):
    """small colored blobs, label = quadrant of the blob"""

    def __init__(self, train=True):
        rng = np.random.RandomState(42 if train else 43)
        n = 64 if train else 50
        self.data = rng.rand(n, 3, 16, 16).astype(np.float32) * 0.3
        self.targets = []
        for i in range(n):
            q = rng.randint(4)
            r, c = (q // 2) * 8 + rng.randint(0, 4), (q % 2) * 8 + rng.randint(0, 4)
            self.data[i, :, r:r + 5, c:c + 5] += rng.uniform(0.3, 0.7, size=(3, 1, 1)).astype(np.float32)
            self.targets.append(q)

    def __getitem__(self, index):
        img = (self.data[index] - MEAN) / STD
        return torch.from_numpy(img), self.targets[index]

    def __len__(self):
        return len(self.data)

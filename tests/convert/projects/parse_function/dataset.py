import numpy as np
import torch
from torch.utils.data import Dataset


class ScanDataset(Dataset):
    def __init__(self, num, n_classes=1, size=16):
        rng = np.random.RandomState(19)
        self.images, self.masks = [], []
        for i in range(num):
            mask = np.zeros((size, size), dtype=np.uint8)
            for k in range(2):
                y, x = rng.randint(0, size - 6, 2)
                mask[y:y + 6, x:x + 6] = 1 if n_classes == 1 else 1 + k % (n_classes - 1)
            self.images.append((mask + 0.6 * rng.randn(size, size))[None])
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {'image': torch.from_numpy(self.images[i]).float(), 'mask': torch.from_numpy(self.masks[i])}

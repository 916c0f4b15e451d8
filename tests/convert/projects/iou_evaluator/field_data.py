import numpy as np
import torch
from torch.utils.data import Dataset


class FieldSegmentation(Dataset):
    """aerial views of crop fields. 0 soil, 1 crop, 2 road; 255 not annotated"""
    NUM_CLASSES = 3

    def __init__(self, split='train'):
        rng = np.random.RandomState({'train': 20, 'val': 21}[split])
        n = {'train': 48, 'val': 40}[split]
        colors = np.array([[0.5, 0.4, 0.2], [0.2, 0.7, 0.2], [0.6, 0.6, 0.6]])
        self.images, self.masks = [], []
        for _ in range(n):
            mask = np.zeros((16, 16), dtype=np.int64)
            y, x = rng.randint(0, 8, 2)
            mask[y:y + rng.randint(4, 9), x:x + rng.randint(4, 9)] = 1
            r = rng.randint(0, 14)
            mask[:, r:r + 2] = 2
            img = colors[mask] + 0.15 * rng.randn(16, 16, 3)
            # only a part of most images is annotated
            mask[rng.randint(2, 17):] = 255
            self.images.append(img.transpose(2, 0, 1).astype(np.float32))
            self.masks.append(mask)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {'image': torch.from_numpy(self.images[index]), 'label': torch.from_numpy(self.masks[index])}

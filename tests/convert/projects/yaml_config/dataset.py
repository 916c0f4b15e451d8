import numpy as np
import torch
import torch.utils.data


class Cells(torch.utils.data.Dataset):
    """
    Microscope like pictures: a few bright discs on a dark background, mask = discs
    """
    def __init__(self, part, size=16):
        rng = np.random.RandomState({'train': 8, 'val': 9}[part])
        num = {'train': 64, 'val': 20}[part]
        yy, xx = np.mgrid[:size, :size]
        self.imgs = np.zeros((num, 1, size, size), dtype='float32')
        self.masks = np.zeros((num, 1, size, size), dtype='float32')
        for i in range(num):
            for _ in range(rng.randint(1, 4)):
                y, x = rng.uniform(2, size - 2, 2)
                r = rng.uniform(2, 3.5)
                self.masks[i, 0][(yy - y) ** 2 + (xx - x) ** 2 < r * r] = 1
            self.imgs[i] = self.masks[i] * rng.uniform(0.5, 1.0) + 0.3 * rng.randn(1, size, size)

    def __len__(self):
        return len(self.imgs)

    def __getitem__(self, idx):
        return torch.from_numpy(self.imgs[idx]), torch.from_numpy(self.masks[idx])

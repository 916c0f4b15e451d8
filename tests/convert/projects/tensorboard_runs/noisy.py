import numpy as np
from torch.utils.data import Dataset


class NoisyWaves(Dataset):

    def __init__(self, n, seed, sigma=0.2):
        rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[0:16, 0:16] / 16.0
        a = rng.uniform(0, np.pi, (n, 1, 1))
        k = rng.uniform(4, 12, (n, 1, 1))
        self.clean = 0.5 + 0.5 * np.sin(k * (np.cos(a) * xx + np.sin(a) * yy))
        self.noisy = self.clean + sigma * rng.randn(n, 16, 16)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, i):
        return self.noisy[i][None].astype(np.float32), self.clean[i][None].astype(np.float32)

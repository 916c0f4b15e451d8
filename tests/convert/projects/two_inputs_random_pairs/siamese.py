import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import Dataset


class PairDataset(Dataset):
    """random pairs of signatures: 1 = same writer, 0 = different writers"""

    def __init__(self, n, seed, n_writers=8):
        rng = np.random.RandomState(seed)
        style = np.random.RandomState(500).randn(n_writers, 24)
        self.writer = np.arange(n) % n_writers
        self.x = (style[self.writer] + 0.4 * rng.randn(n, 24)).astype(np.float32)
        self.by_writer = [np.where(self.writer == w)[0].tolist() for w in range(n_writers)]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        w = int(self.writer[i])
        if random.random() < 0.5:
            j = random.choice(self.by_writer[w])
            label = 1.0
        else:
            other = random.choice([k for k in range(len(self.by_writer)) if k != w])
            j = random.choice(self.by_writer[other])
            label = 0.0
        return torch.from_numpy(self.x[i]), torch.from_numpy(self.x[j]), torch.tensor([label])


class SiameseNet(nn.Module):
    def __init__(self):
        super(SiameseNet, self).__init__()
        self.branch = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 16))
        self.fc = nn.Linear(16, 1)

    def forward_once(self, x):
        return torch.tanh(self.branch(x))

    def forward(self, x1, x2):
        d = torch.abs(self.forward_once(x1) - self.forward_once(x2))
        return self.fc(d)

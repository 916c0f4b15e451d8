import numpy as np
import torch
from torch.utils.data import TensorDataset

from base import BaseDataLoader


class SignalLoader(BaseDataLoader):
    """sine, saw or square, noisy"""

    def __init__(self, num, batch_size, shuffle=True, validation_split=0.0, num_workers=1):
        rng = np.random.RandomState(17)
        y = rng.randint(0, 3, num)
        t = np.linspace(0, 4, 32)[None] + rng.rand(num, 1)
        shapes = np.stack([np.sin(2 * np.pi * t), 2 * (t % 1) - 1, np.sign(t % 1 - 0.5)])
        x = shapes[y, np.arange(num)] + 0.2 * rng.randn(num, 32)
        self.dataset_ = TensorDataset(torch.tensor(x[:, None], dtype=torch.float32), torch.tensor(y, dtype=torch.int64))
        super().__init__(self.dataset_, batch_size, shuffle, validation_split, num_workers)

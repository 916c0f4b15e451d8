import numpy as np
import torch


class TrafficWindows(torch.utils.data.Dataset):
    """sliding windows over hourly traffic counts"""

    def __init__(self, split, history=12, horizon=3, num_sensors=4):
        rng = np.random.RandomState(77)
        steps = 150
        t = np.arange(steps)
        series = []
        for s in range(num_sensors):
            series.append(np.sin(2 * np.pi * (t + rng.randint(24)) / 24) + 0.3 * np.sin(2 * np.pi * t / 12)
                          + 0.1 * rng.randn(steps))
        self.series = torch.tensor(np.array(series), dtype=torch.float32)
        self.history, self.horizon = history, horizon
        if split == 'train':
            self.begin, self.num = 0, 84
        else:
            self.begin, self.num = 90, 44

    def __len__(self):
        return self.num

    def __getitem__(self, i):
        b = self.begin + i
        x = self.series[:, b:b + self.history]
        y = self.series[0, b + self.history:b + self.history + self.horizon]
        return x, y

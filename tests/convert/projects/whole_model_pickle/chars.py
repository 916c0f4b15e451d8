import numpy as np
import torch
import torch.utils.data as data


class Chars(data.Dataset):
    def __init__(self, train=True):
        templates = np.random.RandomState(0).rand(8, 12, 12) > 0.7
        rnd = np.random.RandomState(1 if train else 2)
        num = 80 if train else 48
        self.labels = rnd.randint(0, 8, num)
        shift = rnd.randint(-1, 2, num)
        self.imgs = [np.roll(templates[l], s, axis=1) + 0.2 * rnd.randn(12, 12) for l, s in zip(self.labels, shift)]

    def __getitem__(self, index):
        img = torch.tensor(self.imgs[index], dtype=torch.float).unsqueeze(0)
        return img, torch.tensor(self.labels[index]).long()

    def __len__(self):
        return len(self.imgs)

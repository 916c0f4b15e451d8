import numpy as np
import torch
import torch.utils.data as data

from options import opt


class DepthDataset(data.Dataset):
    """ grey picture of a tilted plane with a box on it -> depth """

    def __init__(self, num, seed):
        rng = np.random.RandomState(seed)
        s = opt.size
        yy, xx = np.mgrid[0:s, 0:s] / float(s)
        self.images, self.depths = [], []
        for i in range(num):
            a, b = rng.uniform(-0.5, 0.5, 2)
            depth = 0.5 + a * (xx - 0.5) + b * (yy - 0.5)
            y, x = rng.randint(1, s - 6, 2)
            depth[y:y + 5, x:x + 5] -= rng.uniform(0.1, 0.3)
            light = 1 - depth + 0.05 * rng.randn(s, s)
            self.images.append(torch.from_numpy(light).float()[None])
            self.depths.append(torch.from_numpy(depth).float()[None])

    def __getitem__(self, index):
        return self.images[index], self.depths[index]

    def __len__(self):
        return len(self.images)


def get_loader(num, seed, shuffle=True):
    return data.DataLoader(DepthDataset(num, seed), batch_size=opt.batchsize, shuffle=shuffle, num_workers=0)


class OneByOne:
    """ for testing, the pictures could have different sizes there. No torch loader """

    def __init__(self, num, seed):
        self.pictures = DepthDataset(num, seed)
        self.size = num
        self.pos = 0

    def load(self):
        image, depth = self.pictures[self.pos]
        self.pos = (self.pos + 1) % self.size
        return image.unsqueeze(0), depth.numpy()[0]

import numpy as np
import torch
from torch.utils import data


class Faces(data.Dataset):
    """Toy faces: attribute k makes one patch of the image brighter."""

    def __init__(self, n_attrs, mode):
        rng = np.random.RandomState(55)
        everything = []
        for _ in range(62):
            attrs = rng.randint(0, 2, n_attrs)
            img = rng.normal(0, 0.5, (3, 12, 12))
            for k in np.flatnonzero(attrs):
                img[k % 3, 2 * k:2 * k + 3] += 1
            everything.append((img, attrs))
        # the first 14 are for testing
        self.items = everything[14:] if mode == 'train' else everything[:14]

    def __getitem__(self, index):
        img, attrs = self.items[index]
        return torch.FloatTensor(img), torch.FloatTensor(attrs)

    def __len__(self):
        return len(self.items)


def get_loader(batch_size, n_attrs=5, mode='train', num_workers=1):
    dataset = Faces(n_attrs, mode)
    return data.DataLoader(dataset=dataset, batch_size=batch_size, shuffle=(mode == 'train'), num_workers=num_workers)

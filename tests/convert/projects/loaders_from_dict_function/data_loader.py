import numpy as np
import torch
from torch.utils.data import Dataset, DataLoader

SPLITS = {'train': (60, 1), 'val': (22, 2), 'test': (22, 3)}    # number of pictures, seed


class LinesDataset(Dataset):
    """pictures with 0 to 5 vertical lines"""

    def __init__(self, split):
        n, seed = SPLITS[split]
        r = np.random.RandomState(seed)
        self.labels = r.randint(0, 6, n)
        self.images = (0.3 * r.randn(n, 3, 12, 12)).astype(np.float32)
        for img, k in zip(self.images, self.labels):
            img[:, 3:10, 0:2 * k:2] += 1

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return torch.from_numpy(self.images[idx]), int(self.labels[idx])


def fetch_dataloader(types, params):
    """dict with a DataLoader for everything in types (list of 'train', 'val', 'test')"""
    dataloaders = {}
    for split in SPLITS:
        if split not in types:
            continue
        if split == 'train':
            dl = DataLoader(LinesDataset(split), batch_size=params.batch_size, shuffle=True,
                            num_workers=params.num_workers, pin_memory=params.cuda)
        else:
            dl = DataLoader(LinesDataset(split), batch_size=params.batch_size, shuffle=False,
                            num_workers=params.num_workers, pin_memory=params.cuda)
        dataloaders[split] = dl
    return dataloaders

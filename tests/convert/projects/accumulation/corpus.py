import random

import torch
from torch.utils.data import Dataset

VOCAB = 40  # 0 is padding


class SentenceDataset(Dataset):
    """token ids -> class. every class likes some of the tokens"""

    def __init__(self, n, seed, n_class=3):
        r = random.Random(seed)
        self.items = []
        for _ in range(n):
            y = r.randrange(n_class)
            length = r.randint(4, 12)
            ids = []
            for _ in range(length):
                if r.random() < 0.4:
                    ids.append(1 + y * 5 + r.randrange(5))
                else:
                    ids.append(r.randint(16, VOCAB - 1))
            self.items.append((ids, y))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


def pad_collate(batch):
    lens = [len(ids) for ids, _ in batch]
    tokens = torch.zeros(len(batch), max(lens), dtype=torch.long)
    for k, (ids, _) in enumerate(batch):
        tokens[k, :len(ids)] = torch.tensor(ids)
    labels = torch.tensor([y for _, y in batch])
    return tokens, labels

import sys

import torch
from torch.optim.lr_scheduler import _LRScheduler
from torch.utils.data import Dataset, DataLoader


def get_network(args):
    """returns the network with the given name"""
    if args.net == 'plain':
        from models import plain
        net = plain()
    elif args.net == 'plain_bn':
        from models import plain_bn
        net = plain_bn()
    elif args.net == 'mlp':
        from models import mlp
        net = mlp()
    else:
        print('unknown network', args.net)
        sys.exit(1)

    if args.gpu:
        net = net.cuda()
    return net


class Textures(Dataset):
    # 6 classes: vertical or horizontal lines in one of the 3 channels
    def __init__(self, num, seed, mean, std):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 6, (num,), generator=g)
        self.x = torch.rand(num, 3, 12, 12, generator=g)
        for i, k in enumerate(self.y):
            if k < 3:
                self.x[i, k, :, ::2] += 1.2
            else:
                self.x[i, k - 3, ::2, :] += 1.2
        for c in range(3):
            self.x[:, c].sub_(mean[c]).div_(std[c])

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def get_training_dataloader(mean, std, batch_size=16, num_workers=2, shuffle=True):
    training_set = Textures(72, 2021, mean, std)
    return DataLoader(training_set, shuffle=shuffle, num_workers=num_workers, batch_size=batch_size)


def get_test_dataloader(mean, std, batch_size=16, num_workers=2, shuffle=False):
    test_set = Textures(28, 2022, mean, std)
    return DataLoader(test_set, shuffle=shuffle, num_workers=num_workers, batch_size=batch_size)


class Warmup(_LRScheduler):
    """lr from 0 to the base lr within `iters` calls of step()"""

    def __init__(self, optimizer, iters, last_epoch=-1):
        self.iters = max(iters, 1)
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        return [lr * min(1.0, self.last_epoch / self.iters) for lr in self.base_lrs]

import argparse
from functools import partial

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from losses import SpotLoss

NUM_CLASSES = 4
COUNTERS = {'ce': partial(F.cross_entropy, ignore_index=-1), 'mse': F.mse_loss}


def make_data(number, cells=12):
    g = torch.Generator().manual_seed(11)
    images = torch.randn(number, 3, cells, generator=g)
    labels = torch.randint(NUM_CLASSES, (number, cells), generator=g)
    rare = torch.rand(number, cells, generator=g)
    labels[rare > torch.linspace(0, 0.6, number).unsqueeze(1)] = 0   # images differ in how many spots they hold
    labels[:, ::5] = -1
    return TensorDataset(images, labels, torch.randn(number, cells, 2, generator=g))


class Spots(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Conv1d(3, 8, 3, padding=1)
        self.scores = nn.Conv1d(8, NUM_CLASSES, 1)
        self.offsets = nn.Conv1d(8, 2, 1)

    def forward(self, x):
        x = F.relu(self.body(x))
        return self.scores(x).transpose(1, 2), self.offsets(x).transpose(1, 2)


def make_optimizer(args, net):
    kinds = {'sgd': (SGD, {'momentum': 0.9}), 'adam': (Adam, {'betas': (0.9, 0.99)})}
    optimizer_class, kwargs = kinds[args.optim]
    kwargs['lr'] = args.lr
    return optimizer_class(net.parameters(), **kwargs)


def main():
    parser = argparse.ArgumentParser(description='finds spots on a line')
    parser.add_argument('--epochs', type=int, default=5)
    parser.add_argument('--batch_size', type=int, default=6)
    parser.add_argument('--lr', type=float, default=0.02)
    parser.add_argument('--optim', default='sgd', choices=['sgd', 'adam'])
    parser.add_argument('--counter', default='ce', choices=sorted(COUNTERS))
    parser.add_argument('--seed', type=int, default=2)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    loader = DataLoader(make_data(27), batch_size=args.batch_size, shuffle=True)
    net = Spots()
    criterion = SpotLoss(NUM_CLASSES)
    counter = COUNTERS[args.counter]
    optimizer = make_optimizer(args, net)
    for epoch in range(args.epochs):
        for images, labels, targets in loader:
            scores, offsets = net(images)
            class_loss, offset_loss, smooth = criterion(scores, offsets, labels, targets)
            loss = class_loss + 0.5 * offset_loss + smooth + 0.1 * counter(scores.flatten(0, 1), labels.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print('epoch %d done' % epoch)
    torch.save(net.state_dict(), 'spots.pth')


if __name__ == '__main__':
    main()

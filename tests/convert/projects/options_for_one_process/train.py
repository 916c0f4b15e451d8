"""Fit a surface; the optimizer and the loss are chosen by name."""
import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from losses import build_loss

OPTIMIZERS = {
    'sgd': torch.optim.SGD,
    'adam': torch.optim.Adam,
    'lbfgs': torch.optim.LBFGS,
}


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument('--optimizer', choices=list(OPTIMIZERS), default='adam')
    parser.add_argument('--loss', default='mse')
    parser.add_argument('--epochs', type=int, default=4)
    parser.add_argument('--gpus', type=int, default=1)
    parser.add_argument('--test', action='store_true')
    return parser.parse_args()


def main():
    args = get_args()
    torch.manual_seed(1)
    x = torch.rand(48, 2)
    y = torch.sin(3 * x).sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=12, shuffle=True)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
    if args.test:
        model.load_state_dict(torch.load('surface.pt'))
        print(F.mse_loss(model(x), y).item())
        return
    criterion = build_loss(args.loss)
    optimizer = OPTIMIZERS[args.optimizer](model.parameters(), lr=0.02)
    for epoch in range(args.epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
        print(f'epoch {epoch}: {loss.item():.5f}')
    torch.save(model.state_dict(), 'surface.pt')


if __name__ == '__main__':
    main()

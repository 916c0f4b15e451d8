'''Ring or disc? A small CNN, its graph in tensorboard, the best weights tested at the end.'''
import argparse
import datetime
import importlib
import json
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(4))
        self.fc = nn.Linear(width * 9, 2)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1))


def rings(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (n,), generator=g)
    r = torch.linspace(-1, 1, 12)
    d = (r[:, None] ** 2 + r[None, :] ** 2).sqrt()
    img = torch.stack([(d < .7).float() - (d < .4).float() * float(k) for k in y])[:, None]
    return TensorDataset(img + .4 * torch.randn(n, 1, 12, 12, generator=g), y)


def write_json(content, path):
    with path.open('wt') as handle:
        json.dump(content, handle, indent=2)


@torch.no_grad()
def accuracy(net, loader, device):
    net.eval()
    right = 0
    for x, y in loader:
        right += (net(x.to(device)).argmax(1).cpu() == y).sum().item()
    return right / len(loader.dataset)


def main(args):
    torch.manual_seed(3)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    out = Path(args.save_dir) / (args.name + datetime.datetime.now().strftime('_%m%d_%H%M%S'))
    out.mkdir(parents=True)
    write_json(vars(args), out / 'config.json')

    train_loader = DataLoader(rings(50, 0), args.batch_size, shuffle=True)
    val_loader = DataLoader(rings(30, 1), args.batch_size)
    net = Net(args.width).to(device)
    print(sum(p.numel() for p in net.parameters()), 'parameters')
    writer = importlib.import_module(args.logger).SummaryWriter(str(out))
    writer.add_graph(net, torch.zeros(1, 1, 12, 12, device=device))

    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr)
    best = -1
    for epoch in range(args.epochs):
        net.train()
        for x, y in train_loader:
            x, y = x.to(device), y.to(device)
            loss = loss_fn(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        acc = accuracy(net, val_loader, device)
        writer.add_scalar('acc', acc, epoch)
        print('epoch', epoch, 'acc %.3f' % acc)
        if acc > best:
            best = acc
            torch.save(net.state_dict(), out / 'best.pt')
    writer.close()

    net.load_state_dict(torch.load(out / 'best.pt'))
    print('best again: %.3f' % accuracy(net, val_loader, device))


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--name', default='rings')
    parser.add_argument('--save_dir', default='saved')
    parser.add_argument('--logger', default='tensorboardX')
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--batch_size', type=int, default=12)
    parser.add_argument('--width', type=int, default=4)
    parser.add_argument('--lr', type=float, default=3e-3)
    main(parser.parse_args())

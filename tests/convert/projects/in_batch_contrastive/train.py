import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

from nt_xent import nt_xent

parser = argparse.ArgumentParser(description='self-supervised pretraining on spectrogram patches')
parser.add_argument('--epochs', default=200, type=int)
parser.add_argument('--batch_size', default=12, type=int)
parser.add_argument('--lr', default=1e-3, type=float)
parser.add_argument('--dim', default=16, type=int, help='size of the embedding')
parser.add_argument('--temperature', default=0.2, type=float)
parser.add_argument('--seed', default=0, type=int)
parser.add_argument('--resume', default='', type=str)


class TwoViews(Dataset):
    """two noisy, rolled versions of a patch"""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        low = torch.randn(n, 1, 4, 4, generator=gen)
        self.patches = nn.functional.interpolate(low, size=(12, 12), mode='bilinear', align_corners=False)

    def augment(self, x):
        x = torch.roll(x, int(torch.randint(-1, 2, (1,))), dims=2)
        return x + 0.1 * torch.randn_like(x)

    def __getitem__(self, i):
        x = self.patches[i]
        return self.augment(x), self.augment(x)

    def __len__(self):
        return len(self.patches)


class Encoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
            nn.Flatten())
        self.proj = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, dim))

    def forward(self, x):
        return self.proj(self.conv(x))


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    train_loader = DataLoader(TwoViews(72, 51), batch_size=args.batch_size, shuffle=True, drop_last=True)
    val_loader = DataLoader(TwoViews(48, 52), batch_size=args.batch_size, shuffle=False, drop_last=True)

    model = Encoder(args.dim).to(device)
    optimizer = torch.optim.Adam(model.parameters(), args.lr, weight_decay=1e-4)

    first = 0
    if os.path.isfile(args.resume):
        ckpt = torch.load(args.resume, map_location=device)
        model.load_state_dict(ckpt['encoder'])
        optimizer.load_state_dict(ckpt['optimizer'])
        first = ckpt['epoch']

    for epoch in range(first, args.epochs):
        model.train()
        for it, (v1, v2) in enumerate(train_loader):
            views = torch.cat([v1, v2]).to(device)
            loss, logits, labels = nt_xent(model(views), args)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if it % 2 == 0:
                acc = (logits.argmax(1) == labels).float().mean().item()
                print('ep {} it {} loss {:.4f} acc {:.3f}'.format(epoch, it, loss.item(), acc))

        model.eval()
        found = 0
        with torch.no_grad():
            for v1, v2 in val_loader:
                _, logits, labels = nt_xent(model(torch.cat([v1, v2]).to(device)), args)
                found += (logits.argmax(1) == labels).sum().item()
        print('ep {} val: partner found for {:.3f}'.format(epoch, found / (2. * args.batch_size * len(val_loader))))

        torch.save({'epoch': epoch + 1, 'encoder': model.state_dict(), 'optimizer': optimizer.state_dict()},
                   'pretrained.pth.tar')


if __name__ == '__main__':
    main()

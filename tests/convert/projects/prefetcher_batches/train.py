import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from prefetch import Prefetcher

parser = argparse.ArgumentParser()
parser.add_argument('--epochs', type=int, default=20)
parser.add_argument('--batch-size', type=int, default=12)
parser.add_argument('--lr', type=float, default=0.05)
args = parser.parse_args()

torch.manual_seed(1)
device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')


class Stripes(Dataset):
    """Images with stripes in one of three directions."""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(3, (n,), generator=gen)
        lines = torch.arange(12)
        images = torch.zeros(n, 1, 12, 12)
        for i, label in enumerate(self.labels.tolist()):
            a, b = [(1, 0), (0, 1), (1, 1)][label]
            images[i, 0] = ((a * lines[:, None] + b * lines[None]) % 4 < 2).float()
        self.images = images + 0.4 * torch.randn(images.shape, generator=gen)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 3, stride=2)
        self.fc = nn.Linear(8 * 25, 3)

    def forward(self, x):
        return self.fc(F.relu(self.conv(x)).flatten(1))


def validate(model, loader):
    model.eval()
    correct = 0
    prefetcher = Prefetcher(loader, device)
    images, labels = prefetcher.next()
    with torch.no_grad():
        while images is not None:
            correct += (model(images).argmax(1) == labels).sum().item()
            images, labels = prefetcher.next()
    return correct / len(loader.dataset)


train_loader = DataLoader(Stripes(55, 0), batch_size=args.batch_size, shuffle=True)
val_loader = DataLoader(Stripes(20, 1), batch_size=8)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

for epoch in range(args.epochs):
    model.train()
    prefetcher = Prefetcher(train_loader, device)
    images, labels = prefetcher.next()
    total, step = 0.0, 0
    while images is not None:
        step += 1
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        images, labels = prefetcher.next()
    print(f'epoch {epoch}: loss {total / step:.4f}, accuracy {validate(model, val_loader):.3f}')

torch.save(model.state_dict(), 'stripes.pt')

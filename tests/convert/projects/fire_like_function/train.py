# Matrix factorization for ratings (1..5 stars)
#
#   python train.py
#   python train.py --resume out/epoch1.pt
import os, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, ITEMS = 30, 20


class Ratings(Dataset):
    def __init__(self, lo, hi):
        rng = np.random.RandomState(5)
        taste, kind = rng.randn(USERS, 2), rng.randn(ITEMS, 2)
        pairs = [(u, i) for u in range(USERS) for i in range(ITEMS)]
        rng.shuffle(pairs)
        self.rows = []
        for u, i in pairs[lo:hi]:
            stars = np.clip(np.round(3 + taste[u] @ kind[i]), 1, 5)
            self.rows.append((int(u), int(i), torch.tensor(float(stars))))

    def __len__(self): return len(self.rows)

    def __getitem__(self, k): return self.rows[k]


class MF(nn.Module):
    def __init__(self, dim=4):
        super().__init__()
        self.user = nn.Embedding(USERS, dim)
        self.item = nn.Embedding(ITEMS, dim)
        self.bias_u = nn.Embedding(USERS, 1)
        self.bias_i = nn.Embedding(ITEMS, 1)
        self.mean = nn.Parameter(torch.tensor(3.0))

    def forward(self, u, i):
        dot = (self.user(u) * self.item(i)).sum(1)
        return self.mean + dot + self.bias_u(u).squeeze(1) + self.bias_i(i).squeeze(1)


def rmse(model, loader, device):
    model.eval()
    se = 0
    with torch.no_grad():
        for u, i, r in loader:
            u, i, r = u.to(device), i.to(device), r.to(device)
            se += ((model(u, i).clamp(1, 5) - r) ** 2).sum().item()
    return np.sqrt(se / len(loader.dataset))


def train(lr=0.01, epochs=2, batch_size=12, out='out'):
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    os.makedirs(out, exist_ok=True)

    train_loader = DataLoader(Ratings(0, 96), batch_size, shuffle=True)
    test_loader = DataLoader(Ratings(96, 140), 16)

    model = MF().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    first = 0
    if '--resume' in sys.argv:
        path = sys.argv[sys.argv.index('--resume') + 1]
        ck = torch.load(path, map_location=device)
        model.load_state_dict(ck['model'])
        optimizer.load_state_dict(ck['optimizer'])
        first = ck['epoch']
        print('resuming after epoch', first)

    for epoch in range(first, first + epochs):
        model.train()
        losses = []
        for u, i, r in train_loader:
            u, i, r = u.to(device), i.to(device), r.to(device)
            loss = nn.functional.mse_loss(model(u, i), r)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print('epoch', epoch + 1, 'mse', round(np.mean(losses), 4), 'test rmse', round(rmse(model, test_loader, device), 4))

        torch.save({'epoch': epoch + 1, 'model': model.state_dict(), 'optimizer': optimizer.state_dict()},
                   os.path.join(out, 'epoch%d.pt' % (epoch + 1)))


train()

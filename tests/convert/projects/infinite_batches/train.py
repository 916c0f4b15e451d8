import argparse
import os

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


def infinite(loader):
    while True:
        for batch in loader:
            yield batch


class Curves(Dataset):
    """Sine waves of several frequencies with noise."""

    def __init__(self, n, length=24, seed=0):
        gen = torch.Generator().manual_seed(seed)
        t = torch.linspace(0, 1, length)
        f = 1 + 3 * torch.rand(n, 1, generator=gen)
        phase = 6.28 * torch.rand(n, 1, generator=gen)
        self.curves = torch.sin(6.28 * f * t + phase)

    def __len__(self):
        return len(self.curves)

    def __getitem__(self, i):
        return self.curves[i] + 0.05 * torch.randn(self.curves.shape[1]), self.curves[i]


class AutoEncoder(nn.Module):
    def __init__(self, length=24, hidden=16, latent=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(length, hidden), nn.Tanh(), nn.Linear(hidden, latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.Tanh(), nn.Linear(hidden, length))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def main():
    p = argparse.ArgumentParser()
    p.add_argument('--steps', type=int, default=2000)
    p.add_argument('--batch_size', type=int, default=12)
    p.add_argument('--lr', type=float, default=1e-2)
    p.add_argument('--log_every', type=int, default=5)
    p.add_argument('--save_every', type=int, default=10)
    p.add_argument('--out', default='runs')
    args = p.parse_args()

    torch.manual_seed(3)
    os.makedirs(args.out, exist_ok=True)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    dataset = Curves(43)
    batches = infinite(DataLoader(dataset, batch_size=args.batch_size, shuffle=True, num_workers=0))
    model = AutoEncoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)

    running = 0.0
    for step in range(1, args.steps + 1):
        noisy, clean = next(batches)
        noisy, clean = noisy.to(device), clean.to(device)
        loss = nn.functional.mse_loss(model(noisy), clean)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        running += loss.item()
        if step % args.log_every == 0:
            print('step {:5d}  loss {:.5f}'.format(step, running / args.log_every))
            running = 0.0
        if step % args.save_every == 0:
            torch.save({'step': step, 'model': model.state_dict()}, os.path.join(args.out, 'last.pt'))


if __name__ == '__main__':
    main()

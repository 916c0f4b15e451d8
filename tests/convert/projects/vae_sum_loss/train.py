# -*- coding: utf-8 -*-
"""Variational auto-encoder on 8x8 glyphs"""
import argparse
import os
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from torchvision.utils import save_image

parser = argparse.ArgumentParser(description='VAE glyphs')
parser.add_argument('--batch_size', type=int, default=12)
parser.add_argument('--epochs', type=int, default=10)
parser.add_argument('--lr', type=float, default=1e-3, help='small, because the loss is a sum')
parser.add_argument('--zdim', type=int, default=4)
parser.add_argument('--beta', type=float, default=1.0, help='weight of the KL term')
args = parser.parse_args()

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OUT = 'results'


class Glyphs(Dataset):
    def __init__(self, train):
        rng = np.random.RandomState(100 if train else 101)
        protos = np.random.RandomState(99).rand(6, 8, 8) > 0.6
        n = 66 if train else 40
        self.y = rng.randint(0, 6, n)
        flip = rng.rand(n, 8, 8) < 0.05
        self.x = np.logical_xor(protos[self.y], flip).astype('float32')

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i]).unsqueeze(0), int(self.y[i])


class VAE(nn.Module):
    def __init__(self, zdim):
        super(VAE, self).__init__()
        self.enc = nn.Linear(64, 40)
        self.to_stats = nn.Linear(40, 2 * zdim)
        self.dec = nn.Sequential(nn.Linear(zdim, 40), nn.ReLU(), nn.Linear(40, 64))

    def encode(self, x):
        h = F.relu(self.enc(x.flatten(1)))
        mu, logvar = self.to_stats(h).chunk(2, dim=1)
        return mu, logvar

    def decode(self, z):
        return torch.sigmoid(self.dec(z)).view(-1, 1, 8, 8)

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()   # z = μ + σ·ε
        return self.decode(z), mu, logvar


def elbo_loss(rec, x, mu, logvar):
    # both terms are sums over pixels / dims and over the batch
    bce = F.binary_cross_entropy(rec, x, reduction='sum')
    kl = 0.5 * (mu ** 2 + logvar.exp() - 1 - logvar).sum()
    return bce + args.beta * kl


train_loader = DataLoader(Glyphs(True), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(Glyphs(False), batch_size=args.batch_size, shuffle=False)

model = VAE(args.zdim).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)


def train(epoch):
    model.train()
    total = 0
    for b, (data, _) in enumerate(train_loader):
        data = data.to(device)
        rec, mu, logvar = model(data)
        loss = elbo_loss(rec, data, mu, logvar)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if b % 3 == 0:
            print('epoch %d batch %d/%d loss %.5f' % (epoch, b, len(train_loader), loss.item() / len(data)))
    print('== epoch %d: train loss %.4f' % (epoch, total / len(train_loader.dataset)))


def test(epoch):
    model.eval()
    total = 0
    with torch.no_grad():
        for b, (data, _) in enumerate(test_loader):
            data = data.to(device)
            rec, mu, logvar = model(data)
            total += elbo_loss(rec, data, mu, logvar).item()
            if b == 0:  # originals above their reconstructions
                save_image(torch.cat([data[:6], rec[:6]]).cpu(), '%s/rec_%d.png' % (OUT, epoch), nrow=6)
    print('== epoch %d: test loss %.4f' % (epoch, total / len(test_loader.dataset)))


if __name__ == "__main__":
    if not os.path.exists(OUT):
        os.makedirs(OUT)
    for epoch in range(1, args.epochs + 1):
        train(epoch)
        test(epoch)
        with torch.no_grad():
            z = torch.randn(16, args.zdim).to(device)
            imgs = model.decode(z).cpu()
        save_image(imgs, '%s/sample_%d.png' % (OUT, epoch), nrow=4)
    torch.save(model.state_dict(), OUT + '/vae.pth')

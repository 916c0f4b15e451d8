import argparse
import os
import copy
import math

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import Dataset, DataLoader
from tqdm import tqdm


class Upscaler(nn.Module):
    """bicubic in, residual out"""

    def __init__(self):
        super(Upscaler, self).__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, padding=2)
        self.conv2 = nn.Conv2d(12, 8, 3, padding=1)
        self.conv3 = nn.Conv2d(8, 1, 3, padding=1)
        self.act = nn.PReLU()

    def forward(self, x):
        h = self.act(self.conv1(x))
        h = self.act(self.conv2(h))
        return x + self.conv3(h)


class Waves(Dataset):
    # target: sum of two plane waves, input: the same at half the resolution
    def __init__(self, count, seed):
        rnd = np.random.RandomState(seed)
        r, c = np.mgrid[0:16, 0:16]
        self.sharp = np.zeros((count, 16, 16), np.float32)
        for i in range(count):
            u = rnd.uniform(0.2, 1.4, 4)
            self.sharp[i] = 0.5 + 0.25 * np.sin(u[0] * r + u[1] * c) + 0.2 * np.cos(u[2] * r - u[3] * c)
        half = self.sharp.reshape(count, 8, 2, 8, 2).mean(axis=(2, 4))
        self.blurred = np.kron(half, np.ones((1, 2, 2), np.float32)).astype(np.float32)

    def __len__(self):
        return self.sharp.shape[0]

    def __getitem__(self, i):
        return torch.from_numpy(self.blurred[i:i + 1]), torch.from_numpy(self.sharp[i:i + 1])


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--out', default='weights_x2')
    ap.add_argument('--lr', type=float, default=1e-3)
    ap.add_argument('--batch-size', type=int, default=12)
    ap.add_argument('--num-epochs', type=int, default=400)
    ap.add_argument('--num-workers', type=int, default=8)
    ap.add_argument('--seed', type=int, default=123)
    opt = ap.parse_args()

    os.makedirs(opt.out, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(opt.seed)
    device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')

    train_set = Waves(64, 0)
    train_loader = DataLoader(train_set, opt.batch_size, shuffle=True, num_workers=opt.num_workers,
                              pin_memory=torch.cuda.is_available(), drop_last=True)
    val_loader = DataLoader(Waves(9, 1), 1)

    model = Upscaler().to(device)
    loss_fn = nn.MSELoss()
    optimizer = optim.Adam([
        {'params': model.conv1.parameters()},
        {'params': model.conv2.parameters()},
        {'params': model.act.parameters(), 'weight_decay': 0},
        {'params': model.conv3.parameters(), 'lr': opt.lr * 0.1},   # last layer slower
    ], lr=opt.lr, weight_decay=1e-5)

    best_psnr, best_epoch = 0.0, -1
    best_weights = copy.deepcopy(model.state_dict())

    for epoch in range(opt.num_epochs):
        model.train()
        total, n = 0.0, 0
        for small, big in tqdm(train_loader, desc='epoch %d' % epoch, ncols=80):
            small = small.to(device)
            big = big.to(device)
            loss = loss_fn(model(small), big)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * small.size(0)
            n += small.size(0)

        model.eval()
        psnr = 0.0
        with torch.no_grad():
            for small, big in val_loader:
                pred = model(small.to(device)).clamp(0, 1)
                psnr += -10 * math.log10(((pred - big.to(device)) ** 2).mean().item())
        psnr /= len(val_loader)
        print('epoch %d: loss %.6f, psnr %.4f dB' % (epoch, total / n, psnr))

        if psnr > best_psnr:
            best_psnr, best_epoch = psnr, epoch
            best_weights = copy.deepcopy(model.state_dict())

    print('best: %.3f dB in epoch %d' % (best_psnr, best_epoch))
    torch.save(best_weights, os.path.join(opt.out, 'best.pth'))

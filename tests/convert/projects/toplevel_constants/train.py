# remove the drift and the noise from heart beat curves
import os
import math

import numpy as np
import torch
import torch.nn as nn
from torch.autograd import Variable
from torch.utils.data import Dataset, DataLoader

LENGTH = 64
N_TRAIN = 60
N_VALID = 10
BATCH = 12
EPOCHS = 2
LR = 0.004
SAVE_EVERY = 4          # iterations
OUT = './snapshots'
USE_GPU = torch.cuda.is_available()

if not os.path.isdir(OUT):
    os.makedirs(OUT)


class Beats(Dataset):
    def __init__(self, first, count):
        self.first = first
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        r = np.random.RandomState(self.first + k)      # every curve has its own fixed noise
        t = np.linspace(0, 1, LENGTH)
        period = r.uniform(0.2, 0.35)
        clean = np.zeros(LENGTH)
        for c in np.arange(r.uniform(0, 0.1), 1, period):
            clean += np.exp(-((t - c) / 0.02) ** 2) - 0.3 * np.exp(-((t - c - 0.05) / 0.03) ** 2)
        drift = 0.5 * np.sin(2 * math.pi * (t + r.rand()))
        noisy = clean + drift + 0.1 * r.randn(LENGTH)
        return noisy[None].astype('float32'), clean[None].astype('float32')


class Denoiser(nn.Module):
    def __init__(self, width=10):
        super(Denoiser, self).__init__()
        self.head = nn.Conv1d(1, width, 7, padding=3)
        self.body = nn.Conv1d(width, width, 7, padding=6, dilation=2)
        self.coarse = nn.Conv1d(width, 1, 1)
        self.fine = nn.Conv1d(width, 1, 5, padding=2)

    def forward(self, x):
        h = torch.relu(self.head(x))
        coarse = self.coarse(h)
        h = torch.relu(self.body(h)) + h
        return coarse, coarse + self.fine(h)


train_loader = DataLoader(Beats(0, N_TRAIN), batch_size=BATCH, shuffle=True)
valid_loader = DataLoader(Beats(10000, N_VALID), batch_size=1)
print('training curves:', N_TRAIN, ' batches per epoch:', len(train_loader))

net = Denoiser()
if torch.cuda.is_available():
    net.cuda()
mse = nn.MSELoss()
optimizer = torch.optim.Adam(net.parameters(), lr=LR)

iteration = 0
since_save = 0
running_loss = 0.0
running_fine = 0.0

for epoch in range(EPOCHS):
    net.train()
    for noisy, clean in train_loader:
        iteration += 1
        since_save += 1
        if USE_GPU:
            noisy, clean = Variable(noisy.cuda()), Variable(clean.cuda())
        else:
            noisy, clean = Variable(noisy), Variable(clean)

        coarse, fine = net(noisy)
        loss_coarse = mse(coarse, clean)
        loss_fine = mse(fine, clean)
        loss = loss_fine + 0.5 * loss_coarse   # coarse output only helps in the beginning

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        running_loss += loss.item()
        running_fine += loss_fine.item()
        print('epoch %d it %d | loss %.5f | fine %.5f' % (
            epoch, iteration, running_loss / since_save, running_fine / since_save))

        if iteration % SAVE_EVERY == 0:
            net.eval()
            err = 0.0
            for noisy, clean in valid_loader:
                if USE_GPU:
                    noisy, clean = noisy.cuda(), clean.cuda()
                with torch.no_grad():
                    err += (net(noisy)[1] - clean).abs().mean().item()
            print('   valid abs error %.5f' % (err / len(valid_loader)))
            name = 'beats_it%04d_loss%.4f_fine%.4f.pth' % (iteration, running_loss / since_save, running_fine / since_save)
            torch.save(net.state_dict(), os.path.join(OUT, name))
            print('   ->', name)
            running_loss = 0.0
            running_fine = 0.0
            since_save = 0
            net.train()

print('done,', iteration, 'iterations')

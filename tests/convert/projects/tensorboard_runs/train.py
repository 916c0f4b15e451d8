"""Denoising auto-encoder, logs to tensorboard"""
import argparse
import os
import shutil

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from tensorboardX import SummaryWriter

from noisy import NoisyWaves


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=50)
    parser.add_argument('--batch_size', type=int, default=12)
    parser.add_argument('--lr', type=float, default=2e-3)
    parser.add_argument('--width', type=int, default=8)
    parser.add_argument('--log_dir', type=str, default='runs')
    parser.add_argument('--resume', type=str, default='')
    return parser.parse_args()


def new_run_dir(root):
    n = 1
    while os.path.exists(os.path.join(root, 'run_%d' % n)):
        n += 1
    path = os.path.join(root, 'run_%d' % n)
    os.makedirs(path)
    return path


class DAE(nn.Module):
    def __init__(self, width):
        super(DAE, self).__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(width, width * 2, 3, stride=2, padding=1), nn.ReLU())
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width * 2, width, 2, stride=2), nn.ReLU(),
            nn.ConvTranspose2d(width, 1, 2, stride=2))

    def forward(self, x):
        return self.decoder(self.encoder(x))


args = get_args()
device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')

run_dir = new_run_dir(args.log_dir)
print('writing to', run_dir)
with open(os.path.join(run_dir, 'config.txt'), 'w') as f:
    for k, v in sorted(vars(args).items()):
        f.write('{}: {}\n'.format(k, v))
writer = SummaryWriter(run_dir)

train_loader = DataLoader(NoisyWaves(64, 0), batch_size=args.batch_size, shuffle=True)
val_loader = DataLoader(NoisyWaves(40, 1), batch_size=args.batch_size)

net = DAE(args.width).to(device)
criterion = nn.MSELoss().to(device)
optimizer = torch.optim.Adam(net.parameters(), lr=args.lr)

start_epoch, n_iter, best_loss = 0, 0, float('inf')
if args.resume:
    state = torch.load(args.resume, map_location=device)
    net.load_state_dict(state['net'])
    optimizer.load_state_dict(state['optimizer'])
    start_epoch, n_iter, best_loss = state['epoch'], state['n_iter'], state['best_loss']
    print('continue from epoch', start_epoch)

for epoch in range(start_epoch, args.epochs):
    net.train()
    for noisy, clean in train_loader:
        noisy, clean = noisy.to(device), clean.to(device)
        out = net(noisy)
        loss = criterion(out, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        writer.add_scalar('train/loss', loss.item(), n_iter)
        writer.add_scalar('train/lr', optimizer.param_groups[0]['lr'], n_iter)
        if n_iter % 5 == 0:
            print('iter %d loss %.4f' % (n_iter, loss.item()))
        n_iter += 1

    net.eval()
    val_loss = 0.
    with torch.no_grad():
        for noisy, clean in val_loader:
            noisy, clean = noisy.to(device), clean.to(device)
            out = net(noisy)
            val_loss += criterion(out, clean).item() * noisy.size(0)
    val_loss /= len(val_loader.dataset)
    writer.add_scalar('val/loss', val_loss, epoch)
    # last batch
    writer.add_images('val/noisy', noisy[:4].clamp(0, 1), epoch)
    writer.add_images('val/denoised', out[:4].clamp(0, 1), epoch)
    print('epoch %d val loss %.5f' % (epoch, val_loss))

    is_best = val_loss < best_loss
    best_loss = min(val_loss, best_loss)
    latest = os.path.join(run_dir, 'latest.pth.tar')
    torch.save({'epoch': epoch + 1, 'n_iter': n_iter, 'best_loss': best_loss,
                'net': net.state_dict(), 'optimizer': optimizer.state_dict()}, latest)
    if is_best:
        shutil.copyfile(latest, os.path.join(run_dir, 'best.pth.tar'))

writer.close()

#!/usr/bin/env python
from __future__ import print_function
import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
import torch.utils.data
import torchvision.utils as vutils

from networks import Generator, Discriminator, weights_init


class Rings(torch.utils.data.Dataset):
    """gray 16x16 rings in [-1, 1]"""

    def __init__(self, size=72):
        rs = np.random.RandomState(7)
        yy, xx = np.mgrid[0:16, 0:16]
        out = np.empty((size, 1, 16, 16), dtype=np.float32)
        for k in range(size):
            cy, cx = rs.uniform(6, 10, 2)
            r = rs.uniform(3, 6)
            d = np.sqrt((yy - cy) ** 2 + (xx - cx) ** 2)
            out[k, 0] = 2 * np.exp(-(d - r) ** 2) - 1
        self.imgs = torch.from_numpy(out)

    def __getitem__(self, i):
        return self.imgs[i], 0

    def __len__(self):
        return len(self.imgs)


parser = argparse.ArgumentParser()
parser.add_argument('--batchSize', type=int, default=12)
parser.add_argument('--nz', type=int, default=24, help='size of z')
parser.add_argument('--nf', type=int, default=8, help='width of both networks')
parser.add_argument('--niter', type=int, default=25, help='epochs')
parser.add_argument('--lr', type=float, default=0.0005)
parser.add_argument('--cuda', action='store_true')
parser.add_argument('--netG', default='', help='weights to continue from')
parser.add_argument('--netD', default='', help='weights to continue from')
parser.add_argument('--outf', default='samples', help='images and weights go here')
parser.add_argument('--manualSeed', type=int, default=4242)
opt = parser.parse_args()
print(opt)

if not os.path.exists(opt.outf):
    os.makedirs(opt.outf)

random.seed(opt.manualSeed)
torch.manual_seed(opt.manualSeed)

device = torch.device('cuda:0' if opt.cuda and torch.cuda.is_available() else 'cpu')
nz = opt.nz

dataset = Rings()
dataloader = torch.utils.data.DataLoader(dataset, batch_size=opt.batchSize, shuffle=True)

netG = Generator(nz, opt.nf).to(device)
netG.apply(weights_init)
netD = Discriminator(opt.nf).to(device)
netD.apply(weights_init)
if opt.netG:
    netG.load_state_dict(torch.load(opt.netG, map_location=device))
if opt.netD:
    netD.load_state_dict(torch.load(opt.netD, map_location=device))
print(netG, netD)

bce = nn.BCELoss()
optG = optim.Adam(netG.parameters(), lr=opt.lr, betas=(0.5, 0.999))
optD = optim.Adam(netD.parameters(), lr=opt.lr, betas=(0.5, 0.999))

# always the same z to see the progress
fixed_noise = torch.randn(18, nz, 1, 1, device=device)
REAL, FAKE = 1., 0.

for epoch in range(opt.niter):
    for it, (real, _) in enumerate(dataloader):
        real = real.to(device)
        n = real.size(0)

        # D on real images
        netD.zero_grad()
        label = torch.full((n,), REAL, device=device)
        p_real = netD(real)
        lossD_real = bce(p_real, label)
        lossD_real.backward()

        # D on generated images, its gradient is added to the one of the real images
        z = torch.randn(n, nz, 1, 1, device=device)
        fake = netG(z)
        label.fill_(FAKE)
        p_fake = netD(fake.detach())
        lossD_fake = bce(p_fake, label)
        lossD_fake.backward()
        optD.step()

        # G, with the same fakes but the updated D
        netG.zero_grad()
        label.fill_(REAL)
        p_fool = netD(fake)
        lossG = bce(p_fool, label)
        lossG.backward()
        optG.step()

        print('epoch %d/%d it %d/%d  lossD %.4f lossG %.4f  p(real) %.3f p(fake) %.3f -> %.3f' % (
            epoch, opt.niter, it, len(dataloader), (lossD_real + lossD_fake).item(), lossG.item(),
            p_real.mean().item(), p_fake.mean().item(), p_fool.mean().item()))
        if epoch == 0 and it == 0:
            vutils.save_image(real, os.path.join(opt.outf, 'real.png'), normalize=True)

    with torch.no_grad():
        samples = netG(fixed_noise)
    vutils.save_image(samples, os.path.join(opt.outf, 'fake_%03d.png' % epoch), nrow=6, normalize=True)

    torch.save(netG.state_dict(), '%s/netG_epoch_%d.pth' % (opt.outf, epoch))
    torch.save(netD.state_dict(), '%s/netD_epoch_%d.pth' % (opt.outf, epoch))

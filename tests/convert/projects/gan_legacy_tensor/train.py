import argparse
import os

import numpy as np
import torch
import torch.nn as nn
from PIL import Image
from torch.autograd import Variable
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--batch_size", type=int, default=12)
parser.add_argument("--lr", type=float, default=0.001)
parser.add_argument("--z_dim", type=int, default=20)
parser.add_argument("--size", type=int, default=12, help="height and width of the images")
parser.add_argument("--sample_every", type=int, default=5, help="batches between two sample images")
opt = parser.parse_args()
print(opt)

os.makedirs("images", exist_ok=True)

cuda = torch.cuda.is_available()
n_pixel = opt.size * opt.size


class Bars(Dataset):
  """images with one or two bars, -1 is black"""

  def __init__(self, n=60):
    state = np.random.RandomState(2)
    self.imgs = -np.ones((n, 1, opt.size, opt.size), dtype=np.float32)
    for k in range(n):
      for _ in range(state.randint(1, 3)):
        pos = state.randint(opt.size - 1)
        if state.rand() < 0.5:
          self.imgs[k, :, pos:pos + 2, :] = 1
        else:
          self.imgs[k, :, :, pos:pos + 2] = 1

  def __len__(self):
    return len(self.imgs)

  def __getitem__(self, k):
    return self.imgs[k], 0


class Generator(nn.Module):
  def __init__(self):
    super(Generator, self).__init__()
    dims = [opt.z_dim, 32, 64]
    layers = []
    for a, b in zip(dims[:-1], dims[1:]):
      layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    layers += [nn.Linear(dims[-1], n_pixel), nn.Tanh()]
    self.net = nn.Sequential(*layers)

  def forward(self, z):
    return self.net(z).view(-1, 1, opt.size, opt.size)


class Discriminator(nn.Module):
  def __init__(self):
    super(Discriminator, self).__init__()
    self.net = nn.Sequential(nn.Linear(n_pixel, 48), nn.LeakyReLU(0.2), nn.Linear(48, 1), nn.Sigmoid())

  def forward(self, img):
    return self.net(img.view(img.size(0), -1))


def save_grid(imgs, path, ncol=4):
  imgs = imgs.cpu().numpy()[:, 0]
  rows = [np.concatenate(list(imgs[i:i + ncol]), axis=1) for i in range(0, len(imgs) - ncol + 1, ncol)]
  grid = (np.concatenate(rows, axis=0) * 127.5 + 127.5).clip(0, 255)
  Image.fromarray(grid.astype(np.uint8)).save(path)


G = Generator()
D = Discriminator()
bce = nn.BCELoss()
if cuda:
  G.cuda()
  D.cuda()
  bce.cuda()

loader = DataLoader(Bars(), batch_size=opt.batch_size, shuffle=True)

opt_G = torch.optim.Adam(G.parameters(), lr=opt.lr, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(D.parameters(), lr=opt.lr, betas=(0.5, 0.999))

Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor

for epoch in range(opt.epochs):
  for i, (imgs, _) in enumerate(loader):
    valid = Variable(Tensor(imgs.size(0), 1).fill_(1.0), requires_grad=False)
    fake = Variable(Tensor(imgs.size(0), 1).fill_(0.0), requires_grad=False)
    real = Variable(imgs.type(Tensor))

    # generator first
    opt_G.zero_grad()
    z = Variable(Tensor(np.random.normal(0, 1, (imgs.shape[0], opt.z_dim))))
    gen = G(z)
    loss_G = bce(D(gen), valid)
    loss_G.backward()
    opt_G.step()

    # then the discriminator on the same images
    opt_D.zero_grad()
    loss_D = 0.5 * (bce(D(real), valid) + bce(D(gen.detach()), fake))
    loss_D.backward()
    opt_D.step()

    print("epoch %d/%d batch %d/%d: D %f G %f" % (epoch, opt.epochs, i, len(loader), loss_D.item(), loss_G.item()))

    done = epoch * len(loader) + i
    if done % opt.sample_every == 0:
      save_grid(gen.data, "images/%d.png" % done)

torch.save(G.state_dict(), "generator.pth")
torch.save(D.state_dict(), "discriminator.pth")

# -*- coding: utf-8 -*-
import os
import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from torch.utils.data.sampler import SubsetRandomSampler

parser = argparse.ArgumentParser(description='crystal phase regression')
parser.add_argument('--epochs', default=50, type=int)
parser.add_argument('--batch_size', default=12, type=int)
parser.add_argument('--learning_rate', default=0.1, type=float)
parser.add_argument('--valid_size', default=0.25, type=float, help='part of the data for validation')
parser.add_argument('--gpu', default='', type=str, help='e.g. 0')
args = parser.parse_args()

if args.gpu:
    os.environ['CUDA_VISIBLE_DEVICES'] = args.gpu

np.random.seed(12)
torch.manual_seed(12)


class PhaseData(Dataset):
    '''Lattice descriptors -> formation energy (eV/Å³)'''
    def __init__(self, size):
        gen = np.random.RandomState(5)
        self.X = gen.uniform(-1, 1, (size, 10)).astype(np.float32)
        self.Y = (np.cos(2 * self.X[:, 0]) + 0.8 * self.X[:, 1] - 0.5 * self.X[:, 3]).astype(np.float32)

    def __len__(self):
        return self.X.shape[0]

    def __getitem__(self, i):
        return self.X[i], self.Y[i]


class MLP(nn.Module):
    def __init__(self):
        super(MLP, self).__init__()
        self.l1 = nn.Linear(10, 32)
        self.l2 = nn.Linear(32, 32)
        self.l3 = nn.Linear(32, 1)

    def forward(self, x):
        x = F.silu(self.l1(x))
        x = F.silu(self.l2(x))
        return self.l3(x).squeeze(1)


dataset = PhaseData(96)

# split the data
num_data = len(dataset)
indices = list(range(num_data))
split = int(np.floor(args.valid_size * num_data))
np.random.shuffle(indices)
train_idx, valid_idx = indices[split:], indices[:split]
train_sampler = SubsetRandomSampler(train_idx)
valid_sampler = SubsetRandomSampler(valid_idx)

train_loader = DataLoader(dataset, batch_size=args.batch_size, sampler=train_sampler, num_workers=0)
valid_loader = DataLoader(dataset, batch_size=args.batch_size, sampler=valid_sampler, num_workers=0)

device = torch.device('cuda') if torch.cuda.is_available() else torch.device('cpu')
net = MLP().to(device)
opt = torch.optim.SGD(net.parameters(), args.learning_rate)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.95)

min_mae = 1e9
for epoch in range(args.epochs):
    net.train()
    sum_loss = 0.
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        loss = F.smooth_l1_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sum_loss += loss.item() * len(x)
    sched.step()

    net.eval()
    abs_err = []
    with torch.no_grad():
        for x, y in valid_loader:
            err = (net(x.to(device)).cpu() - y).abs()
            abs_err.extend(err.tolist())
    mae, std = np.mean(abs_err), np.std(abs_err)

    print('epoch %03d | loss %.5f | val MAE %.4f ± %.4f (%d)' % (
        epoch, sum_loss / len(train_idx), mae, std, len(valid_idx)))

    if mae < min_mae:
        min_mae = mae
        torch.save({'net': net.state_dict(), 'epoch': epoch, 'mae': float(mae)}, 'phase_net.pth')

print('best MAE: %.4f' % min_mae)

from __future__ import print_function
import argparse
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.utils.data import DataLoader

from dataset import PatchDataset
from model import PatchNet

parser = argparse.ArgumentParser(description='Texture patch classification')
parser.add_argument('--epochs', type=int, default=60)
parser.add_argument('--batch-size', type=int, default=12, help='for all GPUs together')
parser.add_argument('--lr', type=float, default=0.05)
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--save', default='./weights', type=str, help='folder of the weights')
parser.add_argument('--resume', default='', type=str, metavar='PATH')
args = parser.parse_args()

use_cuda = torch.cuda.is_available()
torch.manual_seed(args.seed)
if use_cuda:
    torch.cuda.manual_seed(args.seed)

if not os.path.exists(args.save):
    os.makedirs(args.save)

train_loader = DataLoader(PatchDataset(72, seed=10), batch_size=args.batch_size, shuffle=True)
test_loader = DataLoader(PatchDataset(40, seed=11), batch_size=2 * args.batch_size, shuffle=True)

model = PatchNet(3, 4)
if use_cuda: model = model.cuda()
model = torch.nn.DataParallel(model)
optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

first_epoch = 1
if args.resume:
    state = torch.load(args.resume, map_location=lambda storage, loc: storage)
    model.module.load_state_dict(state['net'])
    optimizer.load_state_dict(state['opt'])
    first_epoch = state['epoch'] + 1
    print('resumed from', args.resume, 'next epoch is', first_epoch)


def train(epoch):
    model.train()
    tic = time.time()
    for step, (patches, labels) in enumerate(train_loader):
        if use_cuda:
            patches, labels = patches.cuda(), labels.cuda()
        optimizer.zero_grad()
        scores = model(patches)
        loss = F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        if step % 2 == 0:
            print('ep {} {:3d}/{} loss {:.5f}'.format(epoch, step * len(patches), len(train_loader.dataset), loss.item()))
    # print('took', time.time() - tic)


def test():
    model.eval()
    loss_sum, hits = 0, 0
    with torch.no_grad():
        for patches, labels in test_loader:
            if use_cuda:
                patches, labels = patches.cuda(), labels.cuda()
            scores = model(patches)
            loss_sum += F.cross_entropy(scores, labels, reduction='sum').item()
            best = scores.max(1)[1]
            hits += best.eq(labels).sum().item()
    n = len(test_loader.dataset)
    print('   test loss {:.4f}   acc {}/{} = {:.1f}%'.format(loss_sum / n, hits, n, 100. * hits / n))


for epoch in range(first_epoch, args.epochs + 1):
    train(epoch)
    test()
    torch.save({'epoch': epoch, 'net': model.module.state_dict(), 'opt': optimizer.state_dict()},
               os.path.join(args.save, 'model.pth'))

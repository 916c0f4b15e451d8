'''Blob images with a mini ResNet.

    python train.py
    python train.py -c        continue an interrupted training
'''
import os
import argparse

import torch
import torch.nn as nn
import torch.backends.cudnn as cudnn
from torch.utils.data import DataLoader

from data import ToyImages
from resnet import MiniResNet


parser = argparse.ArgumentParser()
parser.add_argument('--lr', default=0.05, type=float)
parser.add_argument('--epochs', default=100, type=int, help='how many (more) epochs')
parser.add_argument('--bs', default=12, type=int)
parser.add_argument('-c', '--continue_training', action='store_true')
args = parser.parse_args()

device = 'cuda' if torch.cuda.is_available() else 'cpu'
ckpt_file = os.path.join('checkpoint', 'net.pth')
best_acc = 0
first = 0

loader_train = DataLoader(ToyImages(train=True), batch_size=args.bs, shuffle=True, num_workers=0)
loader_test = DataLoader(ToyImages(train=False), batch_size=20, shuffle=False, num_workers=0)

net = MiniResNet()
net = net.to(device)
if device == 'cuda':
    net = torch.nn.DataParallel(net)
    cudnn.benchmark = True
print('parameters: %d' % sum(p.numel() for p in net.parameters()))

if args.continue_training:
    ckpt = torch.load(ckpt_file, map_location=device)
    net.load_state_dict(ckpt['weights'])
    best_acc = ckpt['best_acc']
    first = ckpt['epoch'] + 1

criterion = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones=[50, 75], gamma=0.1)


def train_one_epoch(epoch):
    net.train()
    sum_loss, good, seen = 0, 0, 0
    for k, (img, cls) in enumerate(loader_train):
        img, cls = img.to(device), cls.to(device)
        out = net(img)
        loss = criterion(out, cls)
        sgd.zero_grad()
        loss.backward()
        sgd.step()

        sum_loss += loss.item()
        good += (out.argmax(1) == cls).sum().item()
        seen += cls.size(0)
    print('%3d train: loss %.4f acc %.2f%% (%d of %d)' % (epoch, sum_loss / (k + 1), 100. * good / seen, good, seen))


def test_and_save(epoch):
    global best_acc
    net.eval()
    sum_loss, good, seen = 0, 0, 0
    with torch.no_grad():
        for k, (img, cls) in enumerate(loader_test):
            img, cls = img.to(device), cls.to(device)
            out = net(img)
            sum_loss += criterion(out, cls).item()
            good += (out.argmax(1) == cls).sum().item()
            seen += cls.size(0)
    acc = 100. * good / seen
    print('%3d test:  loss %.4f acc %.2f%% (%d of %d)' % (epoch, sum_loss / (k + 1), acc, good, seen))

    # only the best one is kept
    if acc >= best_acc:
        best_acc = acc
        if not os.path.isdir('checkpoint'):
            os.mkdir('checkpoint')
        torch.save({'weights': net.state_dict(), 'best_acc': best_acc, 'epoch': epoch}, ckpt_file)
        print('    saved')


for epoch in range(first, first + args.epochs):
    train_one_epoch(epoch)
    test_and_save(epoch)
    scheduler.step()

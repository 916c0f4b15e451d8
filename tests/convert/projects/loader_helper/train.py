#!/usr/bin/env python3
import os
import sys
import argparse

import torch
import torch.nn as nn
import torch.optim as optim

import conf
from utils import get_network, get_training_dataloader, get_test_dataloader, Warmup


def train(epoch):
    net.train()
    for i, (x, y) in enumerate(train_loader):
        if args.gpu:
            x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        out = net(x)
        loss = criterion(out, y)
        loss.backward()
        optimizer.step()
        lr = optimizer.param_groups[0]['lr']
        print('epoch %2d  %3d/%d  loss %.4f  lr %.5f' % (epoch, i * args.b + len(x), len(train_loader.dataset), loss.item(), lr))
        if epoch <= args.warm:
            warmup.step()


@torch.no_grad()
def evaluate(epoch):
    net.eval()
    loss, correct = 0.0, 0.0
    for x, y in test_loader:
        if args.gpu:
            x, y = x.cuda(), y.cuda()
        out = net(x)
        loss += criterion(out, y).item() * len(y)
        correct += out.max(1)[1].eq(y).sum()
    n = len(test_loader.dataset)
    acc = correct.float() / n
    print('epoch %2d  TEST loss %.4f acc %.4f' % (epoch, loss / n, acc))
    return acc


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('-net', type=str, required=True)
    parser.add_argument('-gpu', action='store_true', help='train on the gpu')
    parser.add_argument('-b', type=int, default=12, help='batch size')
    parser.add_argument('-warm', type=int, default=1, help='warm up epochs')
    parser.add_argument('-lr', type=float, default=0.05)
    parser.add_argument('-epochs', type=int, default=conf.EPOCHS)
    parser.add_argument('-weights', type=str, default='', help='weights file to start with')
    args = parser.parse_args()
    if args.gpu and not torch.cuda.is_available():
        print('no gpu here, using the cpu')
        args.gpu = False

    net = get_network(args)
    train_loader = get_training_dataloader(conf.MEAN, conf.STD, batch_size=args.b, num_workers=0, shuffle=True)
    test_loader = get_test_dataloader(conf.MEAN, conf.STD, batch_size=args.b, num_workers=0)

    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
    step_lr = optim.lr_scheduler.MultiStepLR(optimizer, milestones=conf.MILESTONES, gamma=0.2)
    warmup = Warmup(optimizer, args.warm * len(train_loader))

    folder = os.path.join(conf.CHECKPOINTS, args.net)
    os.makedirs(folder, exist_ok=True)

    best = 0.0
    if args.weights:
        net.load_state_dict(torch.load(args.weights))
        best = evaluate(0)

    for epoch in range(1, args.epochs + 1):
        if epoch > args.warm:
            step_lr.step()
        train(epoch)
        acc = evaluate(epoch)
        if acc > best:
            best = acc
            torch.save(net.state_dict(), os.path.join(folder, '%s-best.pth' % args.net))
        if epoch % conf.SAVE_EVERY == 0:
            torch.save(net.state_dict(), os.path.join(folder, '%s-%d.pth' % (args.net, epoch)))

import argparse
import os
import random
import shutil
import time

import torch
import torch.nn as nn
import torch.backends.cudnn as cudnn
import torch.utils.data

import models

parser = argparse.ArgumentParser(description='Material classification')
parser.add_argument('-j', '--workers', default=0, type=int, help='data loading workers')
parser.add_argument('--epochs', default=90, type=int)
parser.add_argument('-b', '--batch-size', default=12, type=int)
parser.add_argument('--lr', default=0.1, type=float, help='initial learning rate')
parser.add_argument('--lr-steps', default=[30, 60], type=int, nargs='+', help='epochs after which lr is divided by 10')
parser.add_argument('--warmup', default=1, type=int, help='epochs of linear warm up')
parser.add_argument('--wd', default=1e-4, type=float)
parser.add_argument('-p', '--print-freq', default=2, type=int)
parser.add_argument('--resume', default='', type=str, metavar='PATH')
parser.add_argument('-e', '--evaluate', action='store_true', help='only evaluate')
parser.add_argument('--seed', default=None, type=int)


def main():
    args = parser.parse_args()
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        cudnn.deterministic = True

    model = models.TinyVGG(num_classes=6)
    if torch.cuda.is_available():
        model = model.cuda()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=args.wd)
    print('lr %g -> %g' % (args.lr, args.lr * 0.1 ** len(args.lr_steps)))

    start, best_top1 = 0, 0.
    if args.resume:
        ckpt = torch.load(args.resume, map_location='cpu')
        start, best_top1 = ckpt['epoch'], ckpt['best_top1']
        model.load_state_dict(ckpt['state_dict'])
        optimizer.load_state_dict(ckpt['optimizer'])
        print("loaded '%s' (after epoch %d)" % (args.resume, start))

    train_loader = torch.utils.data.DataLoader(
        material_images(66, 17), batch_size=args.batch_size, shuffle=True,
        num_workers=args.workers, pin_memory=torch.cuda.is_available())
    val_loader = torch.utils.data.DataLoader(
        material_images(45, 18), batch_size=args.batch_size, shuffle=False,
        num_workers=args.workers, pin_memory=torch.cuda.is_available())

    if args.evaluate:
        validate(val_loader, model, criterion)
        return

    for epoch in range(start, args.epochs):
        adjust_learning_rate(optimizer, epoch, args)
        train(train_loader, model, criterion, optimizer, epoch, args)
        top1 = validate(val_loader, model, criterion)

        is_best = top1 > best_top1
        best_top1 = max(top1, best_top1)
        torch.save({'epoch': epoch + 1, 'state_dict': model.state_dict(),
                    'best_top1': best_top1, 'optimizer': optimizer.state_dict()}, 'checkpoint.pth.tar')
        if is_best:
            shutil.copyfile('checkpoint.pth.tar', 'best.pth.tar')


def material_images(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 6, (n,), generator=g)
    tint = torch.eye(6)[:, :3] + 0.5 * torch.eye(6).flip(0)[:, :3]
    x = tint[y].view(n, 3, 1, 1) + 0.5 * torch.randn(n, 3, 12, 12, generator=g)
    return torch.utils.data.TensorDataset(x, y)


def adjust_learning_rate(optimizer, epoch, args):
    # step decay
    lr = args.lr * (0.1 ** sum(epoch >= s for s in args.lr_steps))
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr


def warmup_learning_rate(optimizer, it, total_its, args):
    # linear from lr / 10 to lr
    lr = args.lr * (0.1 + 0.9 * it / float(total_its))
    for param_group in optimizer.param_groups:
        param_group['lr'] = lr


def train(train_loader, model, criterion, optimizer, epoch, args):
    loss_meter, acc_meter, time_meter = Meter('loss'), Meter('top1'), Meter('time')
    model.train()
    t0 = time.time()
    for i, (images, target) in enumerate(train_loader):
        if epoch < args.warmup:
            warmup_learning_rate(optimizer, epoch * len(train_loader) + i, args.warmup * len(train_loader), args)

        if torch.cuda.is_available():
            images = images.cuda(non_blocking=True)
            target = target.cuda(non_blocking=True)
        output = model(images)
        loss = criterion(output, target)

        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        loss_meter.add(loss.item(), images.size(0))
        acc_meter.add(topk_accuracy(output, target, 1), images.size(0))
        time_meter.add(time.time() - t0)
        t0 = time.time()
        if i % args.print_freq == 0:
            print('Epoch %d [%d/%d] lr %.4f %s %s' % (
                epoch, i, len(train_loader), optimizer.param_groups[0]['lr'], loss_meter, acc_meter))


def validate(val_loader, model, criterion):
    loss_meter, acc_meter, acc3_meter = Meter('loss'), Meter('top1'), Meter('top3')
    model.eval()
    with torch.no_grad():
        for images, target in val_loader:
            if torch.cuda.is_available():
                images = images.cuda(non_blocking=True)
                target = target.cuda(non_blocking=True)
            output = model(images)
            loss_meter.add(criterion(output, target).item(), images.size(0))
            acc_meter.add(topk_accuracy(output, target, 1), images.size(0))
            acc3_meter.add(topk_accuracy(output, target, 3), images.size(0))
    print(' ** val %.4f top1 %.3f top3 %.3f' % (loss_meter.mean, acc_meter.mean, acc3_meter.mean))
    return acc_meter.mean


class Meter(object):
    """running mean"""

    def __init__(self, name):
        self.name = name
        self.last = self.total = 0.
        self.n = 0

    def add(self, value, n=1):
        self.last = value
        self.total += value * n
        self.n += n

    @property
    def mean(self):
        return self.total / max(self.n, 1)

    def __str__(self):
        return '%s %.4f (%.4f)' % (self.name, self.last, self.mean)


def topk_accuracy(output, target, k):
    # in percent
    idx = output.detach().topk(k, dim=1)[1]
    hit = (idx == target.view(-1, 1)).any(dim=1)
    return hit.float().mean().item() * 100


if __name__ == '__main__':
    main()

"""
Fine tune: the backbone moves slowly (SGD, poly), the new head follows a one cycle policy (AdamW).

usage: python train.py --epochs 20 --max_lr 0.01
"""
import argparse
import os.path as osp

import numpy as np
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR
from torch.utils.data import Dataset, DataLoader


class Spectra(Dataset):
    def __init__(self, n, seed):
        rng = np.random.RandomState(seed)
        grid = np.linspace(0, 1, 40)
        centers = np.array([0.2, 0.4, 0.6, 0.8])
        self.label = rng.randint(0, 4, n)
        mu = centers[self.label] + 0.03 * rng.randn(n)
        self.spec = np.exp(-((grid[None] - mu[:, None]) / 0.08) ** 2) + 0.1 * rng.randn(n, 40)
        self.spec = self.spec.astype(np.float32)

    def __getitem__(self, idx):
        return self.spec[idx], self.label[idx]

    def __len__(self):
        return len(self.label)


class SpectraNet(nn.Module):
    def __init__(self, ncls=4):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(40, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, ncls)

    def forward(self, x):
        return self.head(self.backbone(x))


class Trainer(object):

    def __init__(self, args):
        self.args = args
        self.use_cuda = torch.cuda.is_available()
        self.train_loader = DataLoader(Spectra(90, 0), batch_size=args.batch_size, shuffle=True, drop_last=False)
        self.val_loader = DataLoader(Spectra(44, 1), batch_size=args.batch_size, shuffle=False)

        self.model = SpectraNet()
        if self.use_cuda:
            self.model = self.model.cuda()
        self.criterion = nn.CrossEntropyLoss()

        self.opt_backbone = torch.optim.SGD(self.model.backbone.parameters(), lr=args.base_lr, momentum=0.9)
        self.opt_head = torch.optim.AdamW(self.model.head.parameters(), lr=args.max_lr / 25)

        total_steps = args.epochs * len(self.train_loader)
        self.sched_backbone = LambdaLR(self.opt_backbone, lr_lambda=lambda it: (1 - it / total_steps) ** args.power)
        self.sched_head = OneCycleLR(self.opt_head, max_lr=args.max_lr, total_steps=total_steps, pct_start=0.3)

        self.best = -1
        self.iters = 0

    def training(self, epoch):
        self.model.train()
        running = 0.0
        for i, (x, y) in enumerate(self.train_loader):
            if self.use_cuda:
                x, y = x.cuda(), y.cuda()
            logits = self.model(x)
            loss = self.criterion(logits, y)

            self.opt_backbone.zero_grad()
            self.opt_head.zero_grad()
            loss.backward()
            self.opt_backbone.step()
            self.opt_head.step()
            self.sched_backbone.step()
            self.sched_head.step()

            self.iters += 1
            running += loss.item()
            if self.iters % 4 == 0:
                print('iter %4d  loss %.4f  lr_b %.6f  lr_h %.6f' % (
                    self.iters, running / (i + 1),
                    self.sched_backbone.get_last_lr()[0], self.opt_head.param_groups[0]['lr']))

    def validation(self, epoch):
        self.model.eval()
        hits = 0
        for x, y in self.val_loader:
            if self.use_cuda:
                x, y = x.cuda(), y.cuda()
            with torch.no_grad():
                logits = self.model(x)
            hits += int((logits.argmax(1) == y).sum())
        acc = hits / float(len(self.val_loader.dataset))
        print('epoch %d: val acc %.4f' % (epoch, acc))
        if acc > self.best:
            self.best = acc
            torch.save({'epoch': epoch, 'model': self.model.state_dict(), 'acc': acc},
                       osp.join(self.args.out, 'spectra_best.pth'))

    def run(self):
        for epoch in range(self.args.epochs):
            self.training(epoch)
            self.validation(epoch)
        torch.save(self.model.state_dict(), osp.join(self.args.out, 'spectra_final.pth'))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--base_lr", type=float, default=0.3)
    parser.add_argument("--max_lr", type=float, default=0.05)
    parser.add_argument("--power", type=float, default=0.9)
    parser.add_argument("--out", type=str, default=".")
    trainer = Trainer(parser.parse_args())
    trainer.run()

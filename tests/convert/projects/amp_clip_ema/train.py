import argparse
import copy
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader
try:
    from torch.amp import GradScaler
except ImportError:  # older torch
    from torch.cuda.amp import GradScaler

from blur import BlurPairs


class Restorer(nn.Module):
    # residual deblurring
    def __init__(self, ch=12):
        super().__init__()
        self.head = nn.Conv2d(1, ch, 3, padding=1)
        self.b1 = nn.Conv2d(ch, ch, 3, padding=1)
        self.b2 = nn.Conv2d(ch, ch, 3, padding=1)
        self.tail = nn.Conv2d(ch, 1, 3, padding=1)

    def forward(self, x):
        h = F.gelu(self.head(x))
        h = h + self.b2(F.gelu(self.b1(h)))
        return x + self.tail(h)


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)


@torch.no_grad()
def update_ema(ema, model, decay):
    for p_ema, p in zip(ema.parameters(), model.parameters()):
        p_ema.mul_(decay).add_(p, alpha=1 - decay)


@torch.no_grad()
def psnr(net, loader, device):
    net.eval()
    total, n = 0., 0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        out = net(x).clamp(0, 1)
        mse = ((out - y) ** 2).flatten(1).mean(1)
        total += (-10 * torch.log10(mse)).sum().item()
        n += x.shape[0]
    return total / n


def main(args):
    set_seed(args.seed)
    use_cuda = torch.cuda.is_available()
    device = torch.device('cuda' if use_cuda else 'cpu')

    train_loader = DataLoader(BlurPairs(72, 'train'), args.bs, shuffle=True, num_workers=args.nw, drop_last=True)
    val_loader = DataLoader(BlurPairs(40, 'val'), args.bs, num_workers=args.nw)

    model = Restorer().to(device)
    ema = copy.deepcopy(model)
    for p in ema.parameters():
        p.requires_grad_(False)

    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
    scaler = GradScaler(enabled=use_cuda)
    start = 0

    if args.resume:
        ckpt = torch.load(args.resume, map_location=device)
        model.load_state_dict(ckpt['model'])
        ema.load_state_dict(ckpt['ema'])
        optimizer.load_state_dict(ckpt['optim'])
        scaler.load_state_dict(ckpt['scaler'])
        start = ckpt['epoch'] + 1
        print('resumed, epoch', start)

    best = 0
    for epoch in range(start, args.epochs):
        model.train()
        for it, (x, y) in enumerate(train_loader):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            with torch.autocast(device_type=device.type, enabled=use_cuda):
                pred = model(x)
                loss = F.l1_loss(pred, y)

            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            gnorm = clip_grad_norm_(model.parameters(), args.clip)
            scaler.step(optimizer)
            scaler.update()
            update_ema(ema, model, args.ema_decay)

            if it % 3 == 0:
                print(f'ep {epoch} it {it}/{len(train_loader)} loss {loss.item():.5f} gnorm {gnorm.item():.4f}')

        p_raw, p_ema = psnr(model, val_loader, device), psnr(ema, val_loader, device)
        print(f'ep {epoch} psnr {p_raw:.3f} dB, ema {p_ema:.3f} dB')

        ckpt = {'epoch': epoch, 'model': model.state_dict(), 'ema': ema.state_dict(),
                'optim': optimizer.state_dict(), 'scaler': scaler.state_dict()}
        torch.save(ckpt, os.path.join(args.save_dir, 'last.pt'))
        if p_ema > best:
            best = p_ema
            torch.save(ema.state_dict(), os.path.join(args.save_dir, 'ema_best.pt'))


if __name__ == '__main__':
    ap = argparse.ArgumentParser()
    ap.add_argument('--epochs', type=int, default=100)
    ap.add_argument('--bs', type=int, default=12)
    ap.add_argument('--nw', type=int, default=0)
    ap.add_argument('--lr', type=float, default=0.02)
    ap.add_argument('--clip', type=float, default=0.5)
    ap.add_argument('--ema_decay', type=float, default=0.9)
    ap.add_argument('--seed', type=int, default=0)
    ap.add_argument('--resume', type=str, default=None)
    ap.add_argument('--save_dir', type=str, default='exp')
    opt = ap.parse_args()
    if not os.path.isdir(opt.save_dir):
        os.makedirs(opt.save_dir)
    main(opt)

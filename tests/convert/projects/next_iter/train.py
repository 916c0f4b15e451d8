import argparse
import os

import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description='deblurring')
parser.add_argument('--num_iters', default=50000, type=int)
parser.add_argument('--batch', default=12, type=int)
parser.add_argument('--lr', default=2e-3, type=float)
parser.add_argument('--milestones', default='6,40000', type=str)
parser.add_argument('--log_iters', default=2, type=int)
parser.add_argument('--save_iters', default=1000, type=int)
parser.add_argument('--resume', default=None, type=str)
parser.add_argument('--outdir', default='exp', type=str)

torch.manual_seed(0)


class BlurPairs(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.sharp = (torch.rand(n, 1, 20, 20, generator=gen) > 0.8).float()
        kernel = torch.tensor([1., 2., 1.])
        kernel = (kernel[:, None] * kernel[None]) / 16
        self.blur = nn.functional.conv2d(self.sharp, kernel[None, None], padding=1)
        self.blur += 0.02 * torch.randn(self.blur.shape, generator=gen)

    def __len__(self):
        return len(self.sharp)

    def __getitem__(self, i):
        return {'blur': self.blur[i], 'sharp': self.sharp[i]}


class Deblur(nn.Module):
    def __init__(self, ch=10):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, ch, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(ch, ch, 3, padding=1), nn.ReLU(True),
            nn.Conv2d(ch, 1, 3, padding=1))

    def forward(self, x):
        return self.net(x) + x


def adjust_lr(optimizer, it, args):
    lr = args.lr
    for m in args.milestones.split(','):
        if it >= int(m):
            lr = lr * 0.5
    for pg in optimizer.param_groups:
        pg['lr'] = lr
    return lr


def validate(model, loader, device):
    model.eval()
    l1 = 0
    with torch.no_grad():
        for batch in loader:
            out = model(batch['blur'].to(device))
            l1 += (out - batch['sharp'].to(device)).abs().mean(dim=(1, 2, 3)).sum().item()
    model.train()
    return l1 / len(loader.dataset)


def main():
    args = parser.parse_args()
    if not os.path.exists(args.outdir):
        os.makedirs(args.outdir)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    model = Deblur().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    criterion = nn.L1Loss()

    start = 0
    history = []
    if args.resume:
        ckpt = torch.load(args.resume, map_location=device)
        model.load_state_dict(ckpt['model'])
        optimizer.load_state_dict(ckpt['optimizer'])
        start = ckpt['iter']
        history = ckpt['history']
        print('resume at iter %d' % start)

    loader = DataLoader(BlurPairs(60, 1), batch_size=args.batch, shuffle=True, num_workers=0, drop_last=True)
    val_loader = DataLoader(BlurPairs(10, 2), batch_size=4, shuffle=False)
    data_iter = iter(loader)

    model.train()
    avg = 0.
    for i in range(start, args.num_iters):
        try:
            batch = next(data_iter)
        except StopIteration:
            data_iter = iter(loader)
            batch = next(data_iter)

        lr = adjust_lr(optimizer, i, args)
        blur, sharp = batch['blur'].to(device), batch['sharp'].to(device)
        out = model(blur)
        loss = criterion(out, sharp)

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

        avg += loss.item()
        if (i + 1) % args.log_iters == 0:
            avg /= args.log_iters
            print('iter %6d  lr %.5f  l1 %.5f' % (i + 1, lr, avg))
            history.append(avg)
            avg = 0.

        if (i + 1) % args.save_iters == 0 or i + 1 == args.num_iters:
            print('iter %6d  val l1 %.5f' % (i + 1, validate(model, val_loader, device)))
            state = {'iter': i + 1, 'model': model.state_dict(), 'optimizer': optimizer.state_dict(), 'history': history}
            torch.save(state, os.path.join(args.outdir, 'deblur_%06d.pth' % (i + 1)))

    plt.plot(history)
    plt.xlabel('iterations / %d' % args.log_iters)
    plt.savefig(os.path.join(args.outdir, 'loss.png'))


if __name__ == '__main__':
    main()

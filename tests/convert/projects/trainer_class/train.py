import argparse
import os
import shutil
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader
from tensorboardX import SummaryWriter
from tqdm import tqdm

CLASSES = ['background', 'disc', 'bar']


class DiscsAndBars(Dataset):
    def __init__(self, root, split):
        # TODO read from root, for now the pictures are drawn here
        count, seed = {'train': (62, 100), 'val': (15, 101)}[split]
        rng = np.random.RandomState(seed)
        yy, xx = np.mgrid[0:16, 0:16]
        self.items = []
        for _ in range(count):
            m = np.zeros((16, 16), dtype=np.int64)
            cy, cx = rng.randint(4, 12, 2)
            m[(yy - cy) ** 2 + (xx - cx) ** 2 < 17] = 1
            top, left = rng.randint(0, 9, 2)
            m[top:top + 7, left:left + 5] = 2
            im = rng.randn(3, 16, 16) * 0.6
            im[0] += (m == 1) * 3
            im[2] += (m == 2) * 3
            self.items.append((im.astype(np.float32), m))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        im, m = self.items[i]
        return {'image': torch.from_numpy(im), 'label': torch.from_numpy(m), 'id': 'img%04d' % i}


class SmallSeg(nn.Module):
    def __init__(self, nclass):
        super(SmallSeg, self).__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Conv2d(8, 12, 3, 1, 2, dilation=2, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.head = nn.Conv2d(12, nclass, 1)

    def forward(self, x):
        score = self.head(self.encoder(x))
        return F.interpolate(score, size=x.shape[-2:], mode='bilinear', align_corners=True)

    def backbone_params(self):
        return [p for p in self.encoder.parameters() if p.requires_grad]


class Trainer(object):
    def __init__(self, args):
        self.args = args
        self.logdir = os.path.join('run', args.name)
        if not os.path.exists(self.logdir):
            os.makedirs(self.logdir)
        self.writer = SummaryWriter(self.logdir)

        # data
        self.train_loader = DataLoader(DiscsAndBars(args.root, 'train'), batch_size=args.batch_size, shuffle=True,
                                       num_workers=args.workers, drop_last=True)
        self.val_loader = DataLoader(DiscsAndBars(args.root, 'val'), batch_size=args.val_batch_size, shuffle=False,
                                     num_workers=args.workers)

        # network, the head learns 10 times faster
        self.model = SmallSeg(len(CLASSES))
        self.optimizer = torch.optim.SGD([{'params': self.model.backbone_params(), 'lr': args.lr},
                                          {'params': self.model.head.parameters(), 'lr': 10 * args.lr}],
                                         momentum=0.9, weight_decay=args.wd)
        self.criterion = nn.CrossEntropyLoss()
        if args.cuda:
            self.model = self.model.cuda()
            self.criterion = self.criterion.cuda()

        self.best = 0.0
        self.start_epoch = 0
        if args.resume:
            state = torch.load(args.resume, map_location='cpu')
            self.model.load_state_dict(state['state_dict'])
            self.optimizer.load_state_dict(state['optimizer'])
            self.start_epoch = state['epoch']
            self.best = state['best']
            print('resumed from %s, epoch %d' % (args.resume, self.start_epoch))

    def set_lr(self, it):
        total = self.args.epochs * len(self.train_loader)
        lr = self.args.lr * (1 - float(it) / total) ** 0.9
        self.optimizer.param_groups[0]['lr'] = lr
        self.optimizer.param_groups[1]['lr'] = 10 * lr

    def training(self, epoch):
        self.model.train()
        sum_loss = 0.0
        bar = tqdm(self.train_loader)
        for i, sample in enumerate(bar):
            image, label = sample['image'], sample['label']
            if self.args.cuda:
                image, label = image.cuda(), label.cuda()
            it = epoch * len(self.train_loader) + i
            self.set_lr(it)
            output = self.model(image)
            loss = self.criterion(output, label)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            sum_loss += loss.item()
            bar.set_description('loss %.3f' % (sum_loss / (i + 1)))
            self.writer.add_scalar('train/loss', loss.item(), it)
        print('epoch %d: train loss %.5f' % (epoch, sum_loss / len(self.train_loader)))

    def validation(self, epoch):
        self.model.eval()
        n = len(CLASSES)
        hist = np.zeros((n, n))
        sum_loss = 0.0
        for sample in tqdm(self.val_loader, desc='val'):
            image, label = sample['image'], sample['label']
            if self.args.cuda:
                image, label = image.cuda(), label.cuda()
            with torch.no_grad():
                output = self.model(image)
                sum_loss += self.criterion(output, label).item()
            pred = output.argmax(1).cpu().numpy().ravel()
            true = label.cpu().numpy().ravel()
            hist += np.bincount(n * true + pred, minlength=n * n).reshape(n, n)

        tp = hist.diagonal()
        iou = tp / np.maximum(hist.sum(0) + hist.sum(1) - tp, 1)
        miou = float(iou.mean())
        self.writer.add_scalar('val/miou', miou, epoch)
        print('  val loss %.5f  pixel acc %.4f  mIoU %.4f  (%s)' % (
            sum_loss / len(self.val_loader), tp.sum() / hist.sum(), miou,
            ', '.join('%s %.3f' % pair for pair in zip(CLASSES, iou))))

        is_best = miou > self.best
        self.best = max(miou, self.best)
        self.save(epoch, is_best)

    def save(self, epoch, is_best):
        path = os.path.join(self.logdir, 'checkpoint.pth.tar')
        torch.save({'epoch': epoch + 1, 'state_dict': self.model.state_dict(), 'optimizer': self.optimizer.state_dict(),
                    'best': self.best}, path)
        if is_best:
            shutil.copyfile(path, os.path.join(self.logdir, 'model_best.pth.tar'))
            with open(os.path.join(self.logdir, 'best.txt'), 'w') as f:
                f.write('epoch %d mIoU %.6f\n' % (epoch, self.best))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--root', default='data', help='folder of the data set')
    parser.add_argument('--name', default='baseline')
    parser.add_argument('--epochs', type=int, default=50)
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--val-batch-size', type=int, default=6)
    parser.add_argument('--lr', type=float, default=0.1)
    parser.add_argument('--wd', type=float, default=5e-4)
    parser.add_argument('--workers', type=int, default=0)
    parser.add_argument('--resume', default=None, type=str)
    parser.add_argument('--no-cuda', action='store_true')
    parser.add_argument('--no-val', action='store_true', help='skip validation (and saving!)')
    args = parser.parse_args()
    args.cuda = torch.cuda.is_available() and not args.no_cuda
    print(args)

    trainer = Trainer(args)
    for epoch in range(trainer.start_epoch, args.epochs):
        trainer.training(epoch)
        if not args.no_val:
            trainer.validation(epoch)
    trainer.writer.close()


if __name__ == "__main__":
    main()

import argparse
import os
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils import data


def get_argparser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--total_itrs", type=int, default=30000)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--batch_size", type=int, default=6)
    parser.add_argument("--val_batch_size", type=int, default=4)
    parser.add_argument("--weight_decay", type=float, default=1e-4)
    parser.add_argument("--val_interval", type=int, default=100, help="validate and save every so many iterations")
    parser.add_argument("--print_interval", type=int, default=5)
    parser.add_argument("--ckpt", default=None, type=str, help="checkpoint to load")
    parser.add_argument("--continue_training", action='store_true', default=False)
    parser.add_argument("--test_only", action='store_true', default=False)
    parser.add_argument("--save_val_results", action='store_true', default=False, help="write predictions as .npy")
    return parser


class Roads(data.Dataset):
    """Aerial pictures with one road and sometimes a lake. 0 field, 1 road, 2 lake"""
    n_classes = 3

    def __init__(self, image_set='train'):
        rng = np.random.RandomState(300 if image_set == 'train' else 301)
        self.samples = []
        for i in range(48 if image_set == 'train' else 13):
            target = np.zeros((16, 16), np.int64)
            if rng.rand() < 0.6:
                y, x = rng.randint(0, 10, 2)
                target[y:y + 6, x:x + 6] = 2
            pos = rng.randint(2, 12)
            if rng.rand() < 0.5:
                target[pos:pos + 3] = 1
            else:
                target[:, pos:pos + 3] = 1
            colors = np.array([[.2, .8, .2], [.6, .6, .6], [.1, .3, .9]])
            image = colors[target].transpose(2, 0, 1) + 0.25 * rng.randn(3, 16, 16)
            self.samples.append((image.astype(np.float32), target))

    def __getitem__(self, index):
        image, target = self.samples[index]
        return torch.from_numpy(image), torch.from_numpy(target)

    def __len__(self):
        return len(self.samples)


class Seg(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2))
        self.classifier = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, n_classes, 1))

    def forward(self, x):
        y = self.classifier(self.backbone(x))
        return F.interpolate(y, size=x.shape[-2:], mode='bilinear', align_corners=False)


class PolyLR(torch.optim.lr_scheduler._LRScheduler):
    def __init__(self, optimizer, max_iters, power=0.9, last_epoch=-1):
        self.max_iters = max_iters
        self.power = power
        super(PolyLR, self).__init__(optimizer, last_epoch)

    def get_lr(self):
        left = max(0.0, 1 - self.last_epoch / self.max_iters)
        return [base * left ** self.power for base in self.base_lrs]


class Confusion(object):
    def __init__(self, n):
        self.n = n
        self.reset()

    def reset(self):
        self.mat = np.zeros((self.n, self.n))

    def add(self, true, pred):
        self.mat += np.bincount(self.n * true.ravel() + pred.ravel(), minlength=self.n ** 2).reshape(self.n, self.n)

    def scores(self):
        hit = np.diag(self.mat)
        iou = hit / (self.mat.sum(0) + self.mat.sum(1) - hit + 1e-9)
        return {"acc": float(hit.sum() / self.mat.sum()), "miou": float(iou.mean())}


def validate(opts, model, loader, device, confusion):
    confusion.reset()
    number = 0
    if opts.save_val_results:
        os.makedirs('results', exist_ok=True)
    with torch.no_grad():
        for images, labels in loader:
            preds = model(images.to(device)).argmax(dim=1).cpu().numpy()
            confusion.add(labels.numpy(), preds)
            if opts.save_val_results:
                for pred in preds:
                    np.save('results/%03d.npy' % number, pred)
                    number += 1
    return confusion.scores()


def main():
    opts = get_argparser().parse_args()
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    train_loader = data.DataLoader(Roads('train'), batch_size=opts.batch_size, shuffle=True, num_workers=0, drop_last=True)
    val_loader = data.DataLoader(Roads('val'), batch_size=opts.val_batch_size, shuffle=True, num_workers=0)
    print("%d training and %d validation pictures, %s" % (len(train_loader.dataset), len(val_loader.dataset), device))

    model = Seg(Roads.n_classes).to(device)
    optimizer = torch.optim.SGD([
        {'params': model.backbone.parameters(), 'lr': 0.1 * opts.lr},
        {'params': model.classifier.parameters(), 'lr': opts.lr},
    ], momentum=0.9, weight_decay=opts.weight_decay, lr=opts.lr)
    scheduler = PolyLR(optimizer, opts.total_itrs)
    criterion = nn.CrossEntropyLoss()
    confusion = Confusion(Roads.n_classes)

    cur_itrs, cur_epochs = 0, 0
    best_score = 0.0
    if opts.ckpt is not None:
        ckpt = torch.load(opts.ckpt, map_location='cpu')
        model.load_state_dict(ckpt["model"])
        if opts.continue_training:
            # otherwise only the weights
            optimizer.load_state_dict(ckpt["optimizer"])
            scheduler.load_state_dict(ckpt["scheduler"])
            scheduler.max_iters = opts.total_itrs
            cur_itrs = ckpt["cur_itrs"]
            best_score = ckpt["best_score"]
            print("continue at iteration %d" % cur_itrs)

    if opts.test_only:
        model.eval()
        print(validate(opts, model, val_loader, device, confusion))
        return

    def save_ckpt(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        torch.save({"cur_itrs": cur_itrs, "best_score": best_score, "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)
        print("  -> %s" % path)

    interval_loss = 0
    model.train()
    while True:
        cur_epochs += 1
        for images, labels in train_loader:
            cur_itrs += 1
            images, labels = images.to(device), labels.to(device)

            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            interval_loss += loss.detach().cpu().numpy()

            if cur_itrs % opts.print_interval == 0:
                print("pass %d, iteration %d/%d, loss %.5f" % (
                    cur_epochs, cur_itrs, opts.total_itrs, interval_loss / opts.print_interval))
                interval_loss = 0

            if cur_itrs % opts.val_interval == 0:
                model.eval()
                score = validate(opts, model, val_loader, device, confusion)
                model.train()
                print("  validation acc %.4f miou %.4f" % (score['acc'], score['miou']))
                is_best = score['miou'] > best_score
                best_score = max(score['miou'], best_score)
                save_ckpt('checkpoints/latest_roads.pth')
                if is_best:
                    save_ckpt('checkpoints/best_roads.pth')

            scheduler.step()
            if cur_itrs >= opts.total_itrs:
                return


if __name__ == '__main__':
    main()

import argparse
import logging
import os
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, random_split
from tqdm import tqdm

from dataset import ScanDataset
from evaluate import evaluate
from unet import UNet

CHECKPOINTS = 'checkpoints/'
log = logging.getLogger('lesions')


def train_net(net, device, epochs=5, batch_size=1, lr=0.001, val_percent=0.2, evals_per_epoch=2, save=True):
    data = ScanDataset(90, n_classes=net.n_classes)
    n_val = int(val_percent * len(data))
    n_train = len(data) - n_val
    train_set, val_set = random_split(data, [n_train, n_val], generator=torch.Generator().manual_seed(0))
    log.info('%d scans for training, %d for validation', n_train, n_val)

    kw = dict(batch_size=batch_size, num_workers=0, pin_memory=device.type == 'cuda')
    train_loader = DataLoader(train_set, shuffle=True, **kw)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **kw)   # same batch size for every dice value

    optimizer = torch.optim.RMSprop(net.parameters(), lr=lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=1, factor=0.5)  # dice goes up
    criterion = nn.BCEWithLogitsLoss() if net.n_classes == 1 else nn.CrossEntropyLoss()

    eval_every = max(n_train // (evals_per_epoch * batch_size), 1)
    step = 0
    for epoch in range(1, epochs + 1):
        net.train()
        losses = 0.
        with tqdm(total=n_train, desc='epoch %d' % epoch, unit='scan', ncols=90) as pbar:
            for batch in train_loader:
                images = batch['image'].to(device)
                if images.shape[1] != net.n_channels:
                    raise ValueError('%d channels, but the net is for %d' % (images.shape[1], net.n_channels))
                masks = batch['mask'].to(device, dtype=torch.float32 if net.n_classes == 1 else torch.int64)

                out = net(images)
                loss = criterion(out.squeeze(1) if net.n_classes == 1 else out, masks)

                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_value_(net.parameters(), 0.1)
                optimizer.step()

                step += 1
                losses += loss.item()
                pbar.update(images.shape[0])
                pbar.set_postfix(loss=loss.item())

                if step % eval_every == 0:
                    score = evaluate(net, val_loader, device)
                    scheduler.step(score)
                    log.info('step %d dice %.5f lr %g', step, score, optimizer.param_groups[0]['lr'])

        log.info('epoch %d loss %.6f', epoch, losses / len(train_loader))
        if save:
            os.makedirs(CHECKPOINTS, exist_ok=True)
            torch.save(net.state_dict(), CHECKPOINTS + 'net_epoch%d.pth' % epoch)


def get_args():
    parser = argparse.ArgumentParser(description='lesion segmentation')
    parser.add_argument('-e', '--epochs', type=int, default=5)
    parser.add_argument('-b', '--batch-size', type=int, default=12, dest='batchsize')
    parser.add_argument('-l', '--learning-rate', type=float, default=0.002, dest='lr')
    parser.add_argument('-f', '--load', type=str, default=None, help='weights (.pth) to start with')
    parser.add_argument('-v', '--validation', dest='val', type=float, default=20, help='percent of the scans')
    parser.add_argument('-c', '--classes', type=int, default=1, help='1: lesion or not')
    return parser.parse_args()


if __name__ == '__main__':
    logging.basicConfig(level=logging.INFO, format='%(levelname)s %(message)s')
    args = get_args()
    torch.manual_seed(11)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    net = UNet(n_channels=1, n_classes=args.classes)
    log.info('net: %d -> %d channels on %s', net.n_channels, net.n_classes, device)
    if args.load is not None:
        net.load_state_dict(torch.load(args.load, map_location='cpu'))
        log.info('weights from %s', args.load)
    net.to(device)

    try:
        train_net(net, device, epochs=args.epochs, batch_size=args.batchsize, lr=args.lr, val_percent=args.val / 100)
    except KeyboardInterrupt:
        # keep what we have
        torch.save(net.state_dict(), 'interrupted.pth')
        log.info('interrupted, weights are in interrupted.pth')
        sys.exit(0)

import os
import yaml
import argparse
import torch
import torch.nn as nn
from torch.utils.data import DataLoader

from dataset import TrafficWindows
from model import TCN

CKPT = 'checkpoint/last.pt'


def save(model, optimizer, scheduler, epoch, best):
    if not os.path.exists('checkpoint'):
        os.makedirs('checkpoint')
    torch.save({
        'model': model.state_dict(),
        'optimizer': optimizer.state_dict(),
        'scheduler': scheduler.state_dict(),
        'epoch': epoch,
        'best_mae': best,
    }, CKPT)


def evaluate(model, loader, device):
    model.eval()
    mae, cnt = 0., 0
    with torch.no_grad():
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            mae += (model(x) - y).abs().mean(dim=1).sum().item()
            cnt += len(x)
    return mae / cnt


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--config', default='config.yaml')
    parser.add_argument('--epochs', type=int, default=None, help='overwrites the config')
    args = parser.parse_args()

    with open(args.config) as f:
        cfg = yaml.safe_load(f)
    if args.epochs is not None:
        cfg['train']['epochs'] = args.epochs
    print(cfg)

    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    train_loader = DataLoader(TrafficWindows('train', **cfg['data']), batch_size=cfg['train']['batch_size'],
                              shuffle=True, num_workers=cfg['train']['num_workers'])
    val_loader = DataLoader(TrafficWindows('val', **cfg['data']), batch_size=cfg['train']['batch_size'],
                            shuffle=False, num_workers=cfg['train']['num_workers'])

    model = TCN(**cfg['model']).to(device)
    criterion = nn.HuberLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg['train']['lr'])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)

    start_epoch = 0
    best_mae = 1e10
    # continue where we stopped
    if os.path.exists(CKPT):
        ckpt = torch.load(CKPT, map_location=device)
        model.load_state_dict(ckpt['model'])
        optimizer.load_state_dict(ckpt['optimizer'])
        scheduler.load_state_dict(ckpt['scheduler'])
        start_epoch = ckpt['epoch'] + 1
        best_mae = ckpt['best_mae']
        print('Found %s, continue with epoch %d' % (CKPT, start_epoch))

    for epoch in range(start_epoch, cfg['train']['epochs']):
        model.train()
        total = 0.
        for step, (x, y) in enumerate(train_loader):
            x, y = x.to(device), y.to(device)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            if step % cfg['train']['print_every'] == 0:
                print('epoch %d step %d/%d loss %.4f lr %.5f' % (
                    epoch, step, len(train_loader), loss.item(), scheduler.get_last_lr()[0]))
        scheduler.step()
        mae = evaluate(model, val_loader, device)
        print('epoch %d: train %.4f, val mae %.4f %s' % (
            epoch, total / len(train_loader), mae, '*' if mae < best_mae else ''))
        best_mae = min(best_mae, mae)
        save(model, optimizer, scheduler, epoch, best_mae)


if __name__ == '__main__':
    main()

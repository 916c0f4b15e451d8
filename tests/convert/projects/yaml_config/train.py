import csv
import os
import sys
from collections import OrderedDict

import torch
import torch.backends.cudnn as cudnn
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import yaml
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader
from tqdm import tqdm

import archs
from dataset import Cells
from utils import AverageMeter, iou_score

HERE = os.path.dirname(os.path.abspath(__file__))


def load_config():
    path = sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, 'config.yaml')
    with open(path) as f:
        return yaml.safe_load(f)


class BCEDice(nn.Module):
    def __init__(self, bce_weight):
        super().__init__()
        self.w = bce_weight

    def forward(self, logit, target):
        bce = F.binary_cross_entropy_with_logits(logit, target)
        p = torch.sigmoid(logit).flatten(1)
        t = target.flatten(1)
        dice = (2 * (p * t).sum(1) + 1e-5) / (p.sum(1) + t.sum(1) + 1e-5)   # one per picture
        return self.w * bce + 1 - dice.mean()


def run_epoch(config, loader, model, criterion, device, optimizer=None):
    """one epoch, training if there is an optimizer, else validation"""
    losses, ious = AverageMeter(), AverageMeter()
    training = optimizer is not None
    model.train(training)
    with torch.set_grad_enabled(training):
        for x, y in tqdm(loader, desc='train' if training else 'val', ncols=80):
            x, y = x.to(device), y.to(device)
            out = model(x)
            if config['deep_supervision']:
                loss = sum(criterion(o, y) for o in out) / len(out)
                out = out[-1]
            else:
                loss = criterion(out, y)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            losses.update(loss.item(), len(x))
            ious.update(iou_score(out, y), len(x))
    return losses.avg, ious.avg


def main():
    config = load_config()
    print(', '.join('%s=%s' % item for item in config.items()))

    folder = os.path.join('models', config['name'])
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, 'config.yml'), 'w') as f:
        yaml.dump(config, f)

    cudnn.benchmark = True
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')

    model = archs.__dict__[config['arch']](config['input_channels'], config['deep_supervision'])
    model = model.to(device)
    criterion = BCEDice(config['bce_weight']).to(device)

    params = filter(lambda p: p.requires_grad, model.parameters())
    if config['optimizer'] == 'Adam':
        optimizer = optim.Adam(params, lr=config['lr'], weight_decay=config['weight_decay'])
    elif config['optimizer'] == 'SGD':
        optimizer = optim.SGD(params, lr=config['lr'], momentum=config['momentum'], nesterov=config['nesterov'],
                              weight_decay=config['weight_decay'])
    else:
        raise ValueError('optimizer or scheduler: see the comments in config.yaml')

    if config['scheduler'] == 'CosineAnnealingLR':
        scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=config['epochs'], eta_min=config['min_lr'])
    elif config['scheduler'] == 'ConstantLR':
        scheduler = None
    else:
        raise ValueError('optimizer or scheduler: see the comments in config.yaml')

    train_loader = DataLoader(Cells('train'), batch_size=config['batch_size'], shuffle=True,
                              num_workers=config['num_workers'], drop_last=True)
    val_loader = DataLoader(Cells('val'), batch_size=config['batch_size'], shuffle=False,
                            num_workers=config['num_workers'], drop_last=False)

    log = OrderedDict((k, []) for k in ['epoch', 'lr', 'loss', 'iou', 'val_loss', 'val_iou'])
    best_iou, waiting = 0, 0
    for epoch in range(config['epochs']):
        lr = optimizer.param_groups[0]['lr']
        loss, iou = run_epoch(config, train_loader, model, criterion, device, optimizer)
        val_loss, val_iou = run_epoch(config, val_loader, model, criterion, device)
        if scheduler is not None:
            scheduler.step()

        for column, value in zip(log.values(), [epoch, lr, loss, iou, val_loss, val_iou]):
            column.append(value)
        print('epoch %d | ' % epoch + ' | '.join('%s %.5f' % (k, v[-1]) for k, v in list(log.items())[1:]))
        with open(os.path.join(folder, 'log.csv'), 'w', newline='') as f:
            w = csv.writer(f)
            w.writerow(log.keys())
            w.writerows(zip(*log.values()))

        waiting += 1
        if val_iou > best_iou:
            best_iou, waiting = val_iou, 0
            torch.save(model.state_dict(), os.path.join(folder, 'model.pth'))
            print('best so far, saved')
        if 0 < config['early_stopping'] <= waiting:
            print('stopped, nothing better for', waiting, 'epochs')
            break


if __name__ == '__main__':
    main()

import argparse
import math
import sys

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

import misc

DIRECTIONS = torch.randn(6, 3, generator=torch.Generator().manual_seed(5))


def get_args_parser():
    parser = argparse.ArgumentParser('train and evaluate', add_help=False)
    parser.add_argument('--epochs', default=30, type=int)
    parser.add_argument('--batch_size', default=12, type=int)
    parser.add_argument('--lr', default=1e-2, type=float)
    parser.add_argument('--warmup_epochs', default=1, type=int)
    parser.add_argument('--output', default='best.pth')
    return parser


def build_dataset(n, seed):
    gen = torch.Generator().manual_seed(seed)
    points = torch.randn(n, 6, generator=gen)
    return TensorDataset(points, (points @ DIRECTIONS).argmax(1))


def train_one_epoch(model, criterion, data_loader, optimizer, device, epoch, args):
    model.train()
    metric_logger = misc.MetricLogger(delimiter='  ')
    metric_logger.add_meter('lr', misc.SmoothedValue(window_size=1, fmt='{value:.6f}'))
    header = 'Epoch: [{}]'.format(epoch)
    for step, (points, labels) in enumerate(metric_logger.log_every(data_loader, 2, header)):
        position = step / len(data_loader) + epoch
        lr = args.lr * min(1.0, (position + 0.1) / args.warmup_epochs)
        for group in optimizer.param_groups:
            group['lr'] = lr
        points, labels = points.to(device), labels.to(device)
        loss = criterion(model(points), labels)
        if not math.isfinite(loss.item()):
            print('Loss is {}, stopping training'.format(loss.item()))
            sys.exit(1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metric_logger.update(loss=loss.item())
        metric_logger.update(lr=lr)
    print('Averaged stats:', metric_logger)
    return {k: meter.global_avg for k, meter in metric_logger.meters.items()}


@torch.no_grad()
def evaluate(model, criterion, data_loader, device):
    metric_logger = misc.MetricLogger(delimiter='  ')
    model.eval()
    for points, labels in metric_logger.log_every(data_loader, 10, 'Test:'):
        points, labels = points.to(device), labels.to(device)
        output = model(points)
        batch_size = points.shape[0]
        metric_logger.meters['loss'].update(criterion(output, labels).item(), n=batch_size)
        metric_logger.meters['acc1'].update((output.argmax(1) == labels).float().mean().item(), n=batch_size)
    print('* Acc@1 {:.3f} loss {:.4f}'.format(metric_logger.acc1.global_avg, metric_logger.loss.global_avg))
    return {k: meter.global_avg for k, meter in metric_logger.meters.items()}


def main(args):
    torch.manual_seed(0)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    data_loader_train = DataLoader(build_dataset(67, 0), batch_size=args.batch_size, shuffle=True)
    data_loader_val = DataLoader(build_dataset(30, 1), batch_size=8, shuffle=False)
    model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss()
    max_accuracy = 0.0
    for epoch in range(args.epochs):
        train_one_epoch(model, criterion, data_loader_train, optimizer, device, epoch, args)
        test_stats = evaluate(model, criterion, data_loader_val, device)
        if test_stats['acc1'] > max_accuracy:
            max_accuracy = test_stats['acc1']
            torch.save({'model': model.state_dict(), 'epoch': epoch}, args.output)
    print('Max accuracy: {:.3f}'.format(max_accuracy))


if __name__ == '__main__':
    main(argparse.ArgumentParser('train', parents=[get_args_parser()]).parse_args())

# Human activity recognition from 6-axis windows, 1d conv baseline
import argparse
import os
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

SEED = 1234
torch.manual_seed(SEED)
np.random.seed(SEED)


class WindowDataset(Dataset):
    def __init__(self, split):
        g = torch.Generator()
        g.manual_seed({'train': 5, 'val': 6}[split])
        n = {'train': 60, 'val': 42}[split]
        t = torch.arange(32).float()
        self.y = torch.randint(0, 5, (n,), generator=g)
        phase = torch.rand(n, 6, 1, generator=g) * 3.14
        freq = (self.y.float() + 1).view(n, 1, 1) * 0.2
        self.x = torch.sin(t * freq + phase) + 0.2 * torch.randn(n, 6, 32, generator=g)

    def __len__(self):
        return self.x.shape[0]

    def __getitem__(self, idx):
        return {'signal': self.x[idx], 'label': self.y[idx]}


class HARNet(nn.Module):
    def __init__(self, num_class=5):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(6, 12, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool1d(2),
            nn.Conv1d(12, 24, 5, padding=2), nn.ReLU(inplace=True), nn.AdaptiveAvgPool1d(4))
        self.classifier = nn.Linear(24 * 4, num_class)

    def forward(self, x):
        x = self.features(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)


def run_epoch(model, loader, criterion, device, optimizer=None):
    """one pass over loader. trains if an optimizer is given"""
    is_train = optimizer is not None
    model.train(is_train)
    losses, n_right, n_seen = 0., 0, 0
    torch.set_grad_enabled(is_train)
    for batch in loader:
        x = batch['signal'].to(device)
        y = batch['label'].to(device)
        out = model(x)
        loss = criterion(out, y)
        if is_train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses += loss.item() * x.size(0)
        n_right += (out.argmax(dim=1) == y).sum().item()
        n_seen += x.size(0)
    torch.set_grad_enabled(True)
    return losses / n_seen, n_right / n_seen


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--epochs', type=int, default=30)
    ap.add_argument('--batch', type=int, default=12)
    ap.add_argument('--lr', type=float, default=3e-3)
    ap.add_argument('--pretrained', type=str, default=None, help='start from these weights')
    ap.add_argument('--outdir', type=str, default='saved_models')
    args = ap.parse_args()

    device = torch.device('cuda:0' if torch.cuda.is_available() else 'cpu')
    train_loader = DataLoader(WindowDataset('train'), batch_size=args.batch, shuffle=True)
    val_loader = DataLoader(WindowDataset('val'), batch_size=args.batch, shuffle=False)

    model = HARNet()
    if args.pretrained is not None:
        model.load_state_dict(torch.load(args.pretrained, map_location='cpu'))
        print('loaded weights from', args.pretrained)
    if torch.cuda.device_count() > 1:
        print('using', torch.cuda.device_count(), 'GPUs')
        model = nn.DataParallel(model)
    model.to(device)

    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

    os.makedirs(args.outdir, exist_ok=True)
    best = 0.0
    for epoch in range(args.epochs):
        tr_loss, tr_acc = run_epoch(model, train_loader, criterion, device, optimizer)
        va_loss, va_acc = run_epoch(model, val_loader, criterion, device)
        print(f'[{epoch + 1}/{args.epochs}] train {tr_loss:.4f} / {tr_acc:.3f}   val {va_loss:.4f} / {va_acc:.3f}')

        weights = (model.module if hasattr(model, 'module') else model).state_dict()
        torch.save(weights, os.path.join(args.outdir, 'har_last.pth'))
        if va_acc > best:
            best = va_acc
            torch.save(weights, os.path.join(args.outdir, 'har_best.pth'))
    print('best val acc: %.3f' % best)


if __name__ == '__main__':
    main()

import argparse
import csv
import logging
import os
import time

import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader

parser = argparse.ArgumentParser(description='remaining useful life from sensor curves')
parser.add_argument('--epochs', type=int, default=30)
parser.add_argument('--batch_size', type=int, default=12)
parser.add_argument('--lr', type=float, default=5e-3)
parser.add_argument('--exp_root', type=str, default='experiments')
parser.add_argument('--tag', type=str, default='gru')
args = parser.parse_args()

exp_dir = os.path.join(args.exp_root, time.strftime('%Y%m%d_%H%M%S') + '_' + args.tag)
os.makedirs(exp_dir, exist_ok=True)

# logging to file and screen
logger = logging.getLogger('rul')
logger.setLevel(logging.INFO)
fmt = logging.Formatter('%(asctime)s %(levelname)s %(message)s')
fh = logging.FileHandler(os.path.join(exp_dir, 'train.log'))
fh.setFormatter(fmt)
logger.addHandler(fh)
sh = logging.StreamHandler()
sh.setFormatter(fmt)
logger.addHandler(sh)
logger.info(str(args))


class SensorCurves(Dataset):
    def __init__(self, n, seed):
        gen = torch.Generator()
        gen.manual_seed(seed)
        life = torch.rand(n, generator=gen)
        t = torch.linspace(0, 1, 20)
        wear = (1 - life)[:, None] * t[None, :] ** 2
        s1 = wear + 0.05 * torch.randn(n, 20, generator=gen)
        s2 = 0.5 - wear + 0.05 * torch.randn(n, 20, generator=gen)
        s3 = 0.1 * torch.randn(n, 20, generator=gen)
        self.x = torch.stack([s1, s2, s3], dim=2)
        self.y = life

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


class GRURegressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(3, 16, batch_first=True)
        self.lin = nn.Linear(16, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.lin(out[:, -1]).squeeze(-1)


def plot_curves(hist, path):
    fig = plt.figure(figsize=(4, 3), dpi=60)
    plt.plot([h[0] for h in hist], [h[1] for h in hist], label='train')
    plt.plot([h[0] for h in hist], [h[2] for h in hist], label='val')
    plt.xlabel('epoch')
    plt.ylabel('mse')
    plt.legend()
    plt.savefig(path)
    plt.close(fig)


device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
train_dl = DataLoader(SensorCurves(72, 1), batch_size=args.batch_size, shuffle=True, num_workers=0)
val_dl = DataLoader(SensorCurves(40, 2), batch_size=20, shuffle=False, num_workers=0)

model = GRURegressor().to(device)
mse = nn.MSELoss()
optim = torch.optim.Adam(model.parameters(), lr=args.lr)

csv_path = os.path.join(exp_dir, 'log.csv')
with open(csv_path, 'w') as f:
    f.write('epoch,train_mse,val_mse\n')

history = []
for epoch in range(1, args.epochs + 1):
    model.train()
    losses = []
    for x, y in train_dl:
        x = x.to(device)
        y = y.to(device)
        optim.zero_grad()
        loss = mse(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optim.step()
        losses.append(loss.item())
    train_mse = sum(losses) / len(losses)

    model.eval()
    sq_err = 0
    with torch.no_grad():
        for x, y in val_dl:
            pred = model(x.to(device))
            sq_err += ((pred - y.to(device)) ** 2).sum().item()
    val_mse = sq_err / len(val_dl.dataset)

    logger.info('epoch %d train %.5f val %.5f', epoch, train_mse, val_mse)
    print('epoch', epoch, 'train mse %.5f' % train_mse, 'val mse %.5f' % val_mse)

    with open(csv_path, 'a', newline='') as f:
        csv.writer(f).writerow([epoch, train_mse, val_mse])
    history.append((epoch, train_mse, val_mse))
    plot_curves(history, os.path.join(exp_dir, 'curves.png'))
    torch.save(model.state_dict(), os.path.join(exp_dir, 'weights.pth'))

logger.info('finished')

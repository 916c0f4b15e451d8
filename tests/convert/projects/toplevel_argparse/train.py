from __future__ import print_function
import argparse
import os
import random
import sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.utils.data as data

parser = argparse.ArgumentParser(description='direction of stripes')
parser.add_argument('--epochs', type=int, default=20)
parser.add_argument('--bs', type=int, default=12, help='batch size')
parser.add_argument('--lr', type=float, default=0.05)
parser.add_argument('--mom', type=float, default=0.9)
parser.add_argument('--wd', type=float, default=1e-4)
parser.add_argument('--drop-at', type=int, nargs='+', default=[1, 10], help='epochs at which the lr is divided by 10')
parser.add_argument('--cpu', action='store_true')
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--exp', default='exp0', type=str)
parser.add_argument('--resume', default='', type=str, help='checkpoint to go on from')
parser.add_argument('-j', default=0, type=int)
args = parser.parse_args()
args.cuda = torch.cuda.is_available() and not args.cpu
print(' '.join(sys.argv[1:]))

random.seed(args.seed)
np.random.seed(args.seed)
torch.manual_seed(args.seed)
if args.cuda:
    torch.cuda.manual_seed_all(args.seed)

folder = os.path.join('experiments', args.exp)
if not os.path.isdir(folder): os.makedirs(folder)

# ---------------------------------------------------------------- data: stripes in 4 directions
rs = np.random.RandomState(7)
data_sets = {}
for part, n in (('train', 72), ('test', 26)):
    X = np.zeros((n, 1, 12, 12), dtype='float32')
    y = rs.randint(0, 4, size=n)
    for k in range(n):
        a, b = np.mgrid[0:12, 0:12]
        t = [a, b, a + b, a - b][y[k]]
        X[k, 0] = np.sin(t * 1.5 + rs.uniform(0, 6)) + rs.randn(12, 12) * 0.4
    data_sets[part] = data.TensorDataset(torch.from_numpy(X), torch.from_numpy(y).long())

train_loader = data.DataLoader(data_sets['train'], batch_size=args.bs, shuffle=True, num_workers=args.j, pin_memory=args.cuda)
test_loader = data.DataLoader(data_sets['test'], batch_size=args.bs, shuffle=False, num_workers=args.j)

# ---------------------------------------------------------------- model
class Net(nn.Module):
    def __init__(self):
        super(Net, self).__init__()
        self.c1 = nn.Conv2d(1, 6, 3)
        self.c2 = nn.Conv2d(6, 8, 3)
        self.out = nn.Linear(8 * 4 * 4, 4)

    def forward(self, x):
        x = F.relu(self.c1(x))
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        return self.out(x.view(x.size(0), -1))

model = Net()
if args.cuda:
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.mom, weight_decay=args.wd)

first_epoch, best = 0, 0.
if args.resume:
    ck = torch.load(args.resume, map_location='cpu')
    model.load_state_dict(ck['model'])
    optimizer.load_state_dict(ck['optim'])
    first_epoch, best = ck['epoch'], ck['best']
    print('going on after epoch', ck['epoch'])

# ---------------------------------------------------------------- training
for epoch in range(first_epoch, args.epochs):
    lr = args.lr * 0.1 ** sum(epoch >= d for d in args.drop_at)
    for group in optimizer.param_groups:
        group['lr'] = lr

    model.train()
    sum_loss, right, seen = 0, 0, 0
    for x, y in train_loader:
        if args.cuda:
            x, y = x.cuda(), y.cuda()
        logits = model(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sum_loss += loss.item() * len(x)
        right += (logits.argmax(1) == y).sum().item()
        seen += len(x)
    print('epoch %d lr %g train loss %.4f acc %.2f' % (epoch + 1, lr, sum_loss / seen, 100. * right / seen))

    model.eval()
    sum_loss, right, seen = 0, 0, 0
    with torch.no_grad():
        for x, y in test_loader:
            if args.cuda:
                x, y = x.cuda(), y.cuda()
            logits = model(x)
            sum_loss += F.cross_entropy(logits, y, reduction='sum').item()
            right += (logits.argmax(1) == y).sum().item()
            seen += len(x)
    acc = 100. * right / seen
    best = max(best, acc)
    print('        test loss %.4f acc %.2f (best %.2f)' % (sum_loss / seen, acc, best))

    torch.save({'epoch': epoch + 1, 'model': model.state_dict(), 'optim': optimizer.state_dict(), 'best': best},
               os.path.join(folder, 'last.pt'))

with open(os.path.join(folder, 'result.txt'), 'w') as f:
    f.write('%.2f\n' % best)

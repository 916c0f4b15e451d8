'''Leaves, 4 species, 16x16 pixels. ~90% after 30 epochs'''
import os
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader

parser = argparse.ArgumentParser(description='leaf species')
parser.add_argument('--lr', default=0.02, type=float, help='start learning rate')
parser.add_argument('--epochs', default=30, type=int, help='how many epochs to train (more)')
parser.add_argument('--batch', default=12, type=int)
parser.add_argument('--resume', '-r', action='store_true', help='go on from checkpoint/best.pth')
args = parser.parse_args()

device = 'cuda' if torch.cuda.is_available() else 'cpu'
species = ['oak', 'maple', 'birch', 'lime']
best_acc = 0
start_epoch = 0


class Leaves(Dataset):
    def __init__(self, train):
        g = torch.Generator()
        g.manual_seed(10 if train else 11)
        n = 72 if train else 30
        self.y = torch.randint(0, len(species), (n,), generator=g)
        self.x = torch.randn(n, 3, 16, 16, generator=g) * 0.7
        for i, k in enumerate(self.y.tolist()):
            self.x[i, k % 3, 4 * k:4 * k + 4] += 0.9

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


print('| loading data')
trainset = Leaves(True)
testset = Leaves(False)
trainloader = DataLoader(trainset, batch_size=args.batch, shuffle=True, num_workers=0)
testloader = DataLoader(testset, batch_size=10, shuffle=False, num_workers=0)


class Res(nn.Module):
    def __init__(self, cin, cout, stride):
        super(Res, self).__init__()
        self.a = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bna = nn.BatchNorm2d(cout)
        self.b = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bnb = nn.BatchNorm2d(cout)
        self.skip = nn.Conv2d(cin, cout, 1, stride, bias=False)

    def forward(self, x):
        h = self.bna(self.a(x)).relu()
        return (self.bnb(self.b(h)) + self.skip(x)).relu()


print('| building net')
net = nn.Sequential(Res(3, 6, 1), Res(6, 12, 2), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, len(species)))
net.to(device)
torch.backends.cudnn.benchmark = True
if args.resume:
    print('| loading checkpoint')
    ckpt = torch.load(os.path.join('checkpoint', 'best.pth'))
    net.load_state_dict(ckpt['net'])
    best_acc = ckpt['acc']
    start_epoch = ckpt['epoch'] + 1

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)


def train(epoch):
    net.train()
    loss_sum, hits, seen = 0, 0, 0
    for i, (x, y) in enumerate(trainloader):
        x, y = x.to(device), y.to(device)
        out = net(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.item()
        hits += out.argmax(1).eq(y).sum().item()
        seen += y.size(0)
        print('  [%2d] %d/%d  loss %.3f  acc %.1f%%' % (epoch, i + 1, len(trainloader), loss_sum / (i + 1), 100. * hits / seen))


def test(epoch):
    global best_acc
    net.eval()
    loss_sum, hits = 0, 0
    with torch.no_grad():
        for x, y in testloader:
            x, y = x.to(device), y.to(device)
            out = net(x)
            loss_sum += criterion(out, y).item()
            hits += out.argmax(1).eq(y).sum().item()
    acc = 100. * hits / len(testset)
    print('  test  loss %.3f  acc %.2f%%  (best so far %.2f%%)' % (loss_sum / len(testloader), acc, best_acc))
    if acc > best_acc:
        best_acc = acc
        print('  saving')
        os.makedirs('checkpoint', exist_ok=True)
        torch.save({'net': net.state_dict(), 'acc': acc, 'epoch': epoch}, os.path.join('checkpoint', 'best.pth'))


for epoch in range(start_epoch, start_epoch + args.epochs):
    print('Epoch %d' % epoch)
    train(epoch)
    test(epoch)
    scheduler.step()
print('best accuracy: %.2f%%' % best_acc)

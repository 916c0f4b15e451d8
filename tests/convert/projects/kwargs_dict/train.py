from __future__ import print_function
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import Dataset, DataLoader


class Pairs(Dataset):
    """Signature pairs. Even index: both from the same writer, odd index: two writers."""

    def __init__(self, n, seed, writers=3):
        g = torch.Generator().manual_seed(seed)
        style = torch.randn(writers, 1, 10, 10, generator=torch.Generator().manual_seed(5))
        self.items = []
        for i in range(n):
            w1 = torch.randint(writers, (1,), generator=g).item()
            w2 = w1
            if i % 2:
                w2 = (w1 + torch.randint(1, writers, (1,), generator=g).item()) % writers
            left = style[w1] + 0.3 * torch.randn(1, 10, 10, generator=g)
            right = style[w2] + 0.3 * torch.randn(1, 10, 10, generator=g)
            self.items.append((left, right, float(w1 == w2)))

    def __getitem__(self, i):
        left, right, same = self.items[i]
        return left, right, torch.tensor(same)

    def __len__(self):
        return len(self.items)


class Twin(nn.Module):
    def __init__(self):
        super(Twin, self).__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc = nn.Linear(32, 8)
        self.out = nn.Linear(8, 1)

    def embed(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.view(x.size(0), -1))

    def forward(self, a, b):
        return self.out((self.embed(a) - self.embed(b)).abs()).squeeze(1)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    criterion = nn.BCEWithLogitsLoss()
    for k, (a, b, same) in enumerate(loader):
        a, b, same = a.to(device), b.to(device), same.to(device)
        optimizer.zero_grad()
        loss = criterion(model(a, b), same)
        loss.backward()
        optimizer.step()
        if k % args.log_interval == 0:
            print('epoch {} batch {}/{} loss {:.6f}'.format(epoch, k, len(loader), loss.item()))


def test(model, device, loader):
    model.eval()
    loss, hit = 0, 0
    with torch.no_grad():
        for a, b, same in loader:
            a, b, same = a.to(device), b.to(device), same.to(device)
            logit = model(a, b)
            loss += F.binary_cross_entropy_with_logits(logit, same, reduction='sum').item()
            hit += ((logit > 0) == (same > 0.5)).sum().item()
    print('test: loss {:.4f}, {}/{} pairs right'.format(loss / len(loader.dataset), hit, len(loader.dataset)))


def main():
    parser = argparse.ArgumentParser(description='same writer or not')
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--test-batch-size', type=int, default=10)
    parser.add_argument('--epochs', type=int, default=10)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--log-interval', type=int, default=1)
    parser.add_argument('--save-model', action='store_true')
    args = parser.parse_args()

    use_cuda = torch.cuda.is_available()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if use_cuda else "cpu")

    train_kwargs = {'batch_size': args.batch_size}
    test_kwargs = {'batch_size': args.test_batch_size}
    train_kwargs.update({'shuffle': True, 'drop_last': True, 'num_workers': 0})
    if use_cuda:
        cuda_kwargs = {'num_workers': 1,
                       'pin_memory': True}
        train_kwargs.update(cuda_kwargs)
        test_kwargs.update(cuda_kwargs)

    train_set = Pairs(64, seed=20)
    test_set = Pairs(24, seed=21)
    train_loader = DataLoader(train_set, **train_kwargs)
    test_loader = DataLoader(test_set, **test_kwargs)

    model = Twin().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)

    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), "twin.pt")


if __name__ == '__main__':
    main()

import argparse

import torch
from torch import nn, optim
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset, DataLoader


class CNN(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(6, 10, 2), nn.Tanh(), nn.AvgPool2d(2))
        self.hidden = nn.Linear(40, hidden)
        self.last = nn.Linear(hidden, 10)

    def forward(self, x):
        h = torch.flatten(self.features(x), 1)
        return self.last(torch.tanh(self.hidden(h))).log_softmax(-1)


def digits(n, seed):
    # no real digits, digit k is a fixed random glyph with noise
    glyphs = torch.randn(10, 1, 14, 14, generator=torch.Generator().manual_seed(99))
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (n,), generator=g)
    return TensorDataset(glyphs[y] + 0.5 * torch.randn(n, 1, 14, 14, generator=g), y)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for step, (image, label) in enumerate(loader):
        image, label = image.to(device), label.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(image), label)
        loss.backward()
        optimizer.step()
        if step % args.print_every == 0:
            done = step * args.batch_size
            print(f'epoch {epoch}  {done:4d}/{len(loader.dataset)}  loss {loss.item():.5f}')


def test(model, device, loader):
    model.eval()
    nll, correct = 0.0, 0
    with torch.no_grad():
        for image, label in loader:
            image, label = image.to(device), label.to(device)
            logp = model(image)
            nll += F.nll_loss(logp, label, reduction='sum').item()
            correct += (logp.argmax(dim=1) == label).sum().item()
    n = len(loader.dataset)
    print(f'  held out: nll {nll / n:.5f}  correct {correct}/{n}')
    return correct / n


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--test-batch-size', type=int, default=20)
    parser.add_argument('--epochs', type=int, default=14)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--gamma', type=float, default=0.7, help='lr factor per epoch')
    parser.add_argument('--cpu', action='store_true')
    parser.add_argument('--seed', type=int, default=3)
    parser.add_argument('--print-every', type=int, default=2)
    parser.add_argument('--save-model', action='store_true')
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    use_cuda = torch.cuda.is_available() and not args.cpu
    device = torch.device('cuda' if use_cuda else 'cpu')
    extra = {'num_workers': 1, 'pin_memory': True} if use_cuda else {}

    train_loader = DataLoader(digits(72, 3), batch_size=args.batch_size, shuffle=True, **extra)
    test_loader = DataLoader(digits(40, 4), batch_size=args.test_batch_size, shuffle=True, **extra)

    model = CNN().to(device)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)

    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), 'digits.pt')


if __name__ == "__main__":
    main()

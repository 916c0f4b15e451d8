from __future__ import print_function
import argparse, random
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

from siamese import PairDataset, SiameseNet


def train(model, device, loader, opt, epoch):
    bce = nn.BCEWithLogitsLoss()
    model.train()
    for k, (x1, x2, same) in enumerate(loader):
        x1, x2, same = x1.to(device), x2.to(device), same.to(device)
        opt.zero_grad()
        loss = bce(model(x1, x2), same)
        loss.backward()
        opt.step()
        if k % 2 == 0:
            print('epoch {}: {}/{} pairs, loss {:.5f}'.format(epoch, k * len(x1), len(loader.dataset), loss.item()))


def test(model, device, loader):
    bce_sum = nn.BCEWithLogitsLoss(reduction='sum')
    model.eval()
    loss, correct = 0, 0
    with torch.no_grad():
        for x1, x2, same in loader:
            x1, x2, same = x1.to(device), x2.to(device), same.to(device)
            score = model(x1, x2)
            loss += bce_sum(score, same).item()
            correct += ((score > 0).float() == same).sum().item()
    loss /= len(loader.dataset)
    print('test: loss {:.4f}, accuracy {:.2f}%'.format(loss, 100. * correct / len(loader.dataset)))


def main():
    parser = argparse.ArgumentParser(description='signature verification')
    parser.add_argument('--batch-size', type=int, default=12)
    parser.add_argument('--epochs', type=int, default=14)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--init', default=None, help='weights to start from')
    parser.add_argument('--save-model', action='store_true', default=False)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    random.seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_kwargs = {'batch_size': args.batch_size, 'shuffle': True}
    test_kwargs = {'batch_size': 50}
    if device.type == "cuda":
        train_kwargs.update({'num_workers': 1, 'pin_memory': True})
        test_kwargs.update({'num_workers': 1, 'pin_memory': True})
    train_loader = DataLoader(PairDataset(72, 60), **train_kwargs)
    test_loader = DataLoader(PairDataset(48, 61), **test_kwargs)

    model = SiameseNet().to(device)
    if args.init:
        model.load_state_dict(torch.load(args.init, map_location=device))
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = StepLR(opt, step_size=1, gamma=0.7)

    for epoch in range(1, args.epochs + 1):
        train(model, device, train_loader, opt, epoch)
        test(model, device, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), "siamese_signatures.pt")


if __name__ == '__main__':
    main()

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from losses import TripletLoss
from two_towers import TwoTowers


class Captions(Dataset):
    """short sentences of tokens with a picture that follows from them"""

    def __init__(self, n, seed):
        gen = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(1, 20, (n, 5), generator=gen)
        self.labels = self.tokens.sum(1) % 3
        self.pictures = torch.randn(20, 12, generator=gen)[self.tokens].mean(1)

    def __getitem__(self, i):
        return {'image': self.pictures[i], 'tokens': self.tokens[i], 'label': self.labels[i], 'number': i}

    def __len__(self):
        return len(self.tokens)


def valid_epoch(model, loader):
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in loader:
            loss, _ = model(batch)
            total += loss.item() * batch['image'].size(0)
            count += batch['image'].size(0)
    return total / count


def main():
    parser = argparse.ArgumentParser(description='pictures and captions in one space')
    parser.add_argument('--epochs', type=int, default=3)
    parser.add_argument('--batch_size', type=int, default=12)
    parser.add_argument('--lr', type=float, default=0.05)
    parser.add_argument('--triplet', type=float, default=0.3, help='weight of the triplet loss')
    args = parser.parse_args()
    torch.manual_seed(0)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'

    loader = DataLoader(Captions(70, 1), batch_size=args.batch_size, shuffle=True)
    valid_loader = DataLoader(Captions(30, 2), batch_size=args.batch_size)
    model = TwoTowers().to(device)
    triplet = TripletLoss(margin=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    best = float('inf')
    for epoch in range(args.epochs):
        model.train()
        for step, batch in enumerate(tqdm(loader)):
            batch = {k: v.to(device) for k, v in batch.items() if k != 'number'}
            loss, embedding = model(batch)
            loss = loss + args.triplet * triplet(embedding, batch['label'])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 2 == 0:
                print('epoch %d step %d loss %.5f' % (epoch, step, loss.item()))
        model.eval()
        valid = valid_epoch(model, valid_loader)
        print('epoch %d valid %.5f' % (epoch, valid))
        if valid < best:
            best = valid
            torch.save(model.state_dict(), 'best.pt')


if __name__ == '__main__':
    main()

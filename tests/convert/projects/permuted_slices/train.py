"""A classifier of points: the data are tensors, and an epoch is a permutation that is cut into batches."""

import argparse

import torch
import torch.nn as nn


def make_data(n):
    x = torch.randn(n, 6)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def batches(x, y, batch_size):
    order = torch.randperm(len(x))
    for start in range(0, len(x), batch_size):
        index = order[start:start + batch_size]
        yield x[index], y[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--batch_size', type=int, default=12)
    parser.add_argument('--epochs', type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    x_train, y_train = make_data(100)
    x_test, y_test = make_data(40)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        model.train()
        total, hits = 0.0, 0
        for xb, yb in batches(x_train, y_train, args.batch_size):
            optimizer.zero_grad()
            outputs = model(xb)
            loss = criterion(outputs, yb)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(xb)
            hits += (outputs.argmax(1) == yb).sum().item()
        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        print(f'epoch {epoch} loss {total / len(x_train):.4f} train {hits / len(x_train):.3f} test {accuracy:.3f}')
        torch.save(model.state_dict(), 'points.pt')


if __name__ == '__main__':
    main()

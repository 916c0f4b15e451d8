import argparse
import random
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader
from torch.optim.lr_scheduler import ReduceLROnPlateau

from early_stopping import EarlyStopping


def fix_seeds(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    torch.backends.cudnn.deterministic = True


def load_data(batch_size):
    # concrete strength like regression, 8 inputs
    rng = np.random.RandomState(2021)
    X = rng.randn(48 + 30 + 34, 8)
    w = rng.randn(8)
    y = X.dot(w) + 0.5 * np.sin(3 * X[:, 0]) + 0.3 * rng.randn(len(X))
    # normalize with statistics of the training part
    mu, sd = X[:48].mean(0), X[:48].std(0)
    X = (X - mu) / sd
    X = torch.tensor(X, dtype=torch.float32)
    y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)

    train_loader = DataLoader(TensorDataset(X[:48], y[:48]), batch_size=batch_size, shuffle=True)
    valid_loader = DataLoader(TensorDataset(X[48:78], y[48:78]), batch_size=batch_size)
    test_loader = DataLoader(TensorDataset(X[78:], y[78:]), batch_size=batch_size)
    return train_loader, valid_loader, test_loader


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=100)
    parser.add_argument('--batch_size', type=int, default=12)
    parser.add_argument('--lr', type=float, default=0.01)
    parser.add_argument('--patience', type=int, default=5)
    parser.add_argument('--seed', type=int, default=3407)
    args = parser.parse_args()

    fix_seeds(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    train_loader, valid_loader, test_loader = load_data(args.batch_size)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 1)).to(device)
    criterion = nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = ReduceLROnPlateau(optimizer, mode='min', factor=0.1, patience=0)
    stopper = EarlyStopping(args.patience)

    for epoch in range(1, args.epochs + 1):
        model.train()
        train_losses = []
        for xb, yb in train_loader:
            xb, yb = xb.to(device), yb.to(device)
            loss = criterion(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            train_losses.append(loss.item())

        model.eval()
        valid_losses = []
        with torch.no_grad():
            for xb, yb in valid_loader:
                xb, yb = xb.to(device), yb.to(device)
                valid_losses.append(criterion(model(xb), yb).item())
        valid_loss = np.mean(valid_losses)

        print(f'epoch {epoch}: train {np.mean(train_losses):.5f} valid {valid_loss:.5f} '
              f'lr {optimizer.param_groups[0]["lr"]:.1e}')
        scheduler.step(valid_loss)
        if stopper.step(valid_loss, model):
            print("early stop after epoch", epoch)
            break

    # final test with the best weights
    model.load_state_dict(torch.load(stopper.path))
    model.eval()
    preds, trues = [], []
    with torch.no_grad():
        for xb, yb in test_loader:
            preds.append(model(xb.to(device)).cpu().numpy())
            trues.append(yb.numpy())
    err = np.concatenate(preds) - np.concatenate(trues)
    print('test MAE %.4f  RMSE %.4f  (%d samples)' % (np.abs(err).mean(), np.sqrt((err ** 2).mean()), len(err)))


if __name__ == '__main__':
    main()

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, random_split
import numpy as np
import argparse
import time


class LeafDataset(Dataset):
    def __init__(self):
        rs = np.random.RandomState(3)
        self.target = np.repeat(np.arange(5), 20)
        centers = rs.randn(5, 12)
        self.features = (centers[self.target] + 0.8 * rs.randn(100, 12)).astype("float32")

    def __len__(self):
        return len(self.target)

    def __getitem__(self, idx):
        return self.features[idx], self.target[idx]


class LeafNet(nn.Module):
    def __init__(self, hidden):
        super(LeafNet, self).__init__()
        self.fc1 = nn.Linear(12, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.fc3 = nn.Linear(hidden, 5)

    def forward(self, x):
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return F.log_softmax(self.fc3(x), dim=1)


p = argparse.ArgumentParser()
p.add_argument("--epochs", default=40, type=int)
p.add_argument("--bs", default=12, type=int)
p.add_argument("--hidden", default=32, type=int)
p.add_argument("--val_percent", default=0.2, type=float)


def main():
    a = p.parse_args()

    dataset = LeafDataset()
    n_val = int(len(dataset) * a.val_percent)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val])
    loaders = {
        "train": DataLoader(train_set, batch_size=a.bs, shuffle=True),
        "val": DataLoader(val_set, batch_size=a.bs, shuffle=False),
    }
    print("%d leaves for training, %d for validation" % (n_train, n_val))

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = LeafNet(a.hidden).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=1e-4)

    best = -1.0
    t0 = time.time()
    for epoch in range(a.epochs):
        for phase in ("train", "val"):
            model.train(phase == "train")
            loss_sum, n_ok = 0.0, 0
            for x, y in loaders[phase]:
                x, y = x.to(device), y.to(device)
                with torch.set_grad_enabled(phase == "train"):
                    logp = model(x)
                    loss = F.nll_loss(logp, y)
                if phase == "train":
                    opt.zero_grad()
                    loss.backward()
                    opt.step()
                loss_sum += loss.item() * x.size(0)
                n_ok += torch.sum(logp.argmax(1) == y)      # stays a tensor

            loss_avg = loss_sum / len(loaders[phase].dataset)
            acc = n_ok.double() / len(loaders[phase].dataset)
            print("{} {:5s} loss {:.4f} acc {:.4f}".format(epoch, phase, loss_avg, acc))
            if phase == "val" and acc > best:
                best = acc
                torch.save(model.state_dict(), "best_model.pth")

    # print("took %.1fs" % (time.time() - t0))
    print("best val acc: {:.4f}".format(best))


if __name__ == "__main__":
    main()

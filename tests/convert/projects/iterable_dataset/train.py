import argparse
import os
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import IterableDataset, DataLoader


def write_reviews(path, n, seed):
  """label <tab> words"""
  r = random.Random(seed)
  words = [
    "bad awful boring slow weak poor".split(),
    "good great funny fast strong fine".split(),
  ]
  filler = "the a movie plot actor scene end very this that was is".split()
  with open(path, "w") as f:
    for _ in range(n):
      y = r.randint(0, 1)
      text = [r.choice(words[y]) if r.random() < 0.3 else r.choice(filler) for _ in range(r.randint(5, 10))]
      f.write("%d\t%s\n" % (y, " ".join(text)))


class ReviewStream(IterableDataset):
  """reads line by line, the file does not fit into memory"""

  def __init__(self, path, buckets=64):
    super().__init__()
    self.path = path
    self.buckets = buckets

  def parse(self, line):
    y, text = line.rstrip("\n").split("\t")
    counts = torch.zeros(self.buckets)
    for w in text.split():
      counts[sum(ord(c) * 31 ** k for k, c in enumerate(w)) % self.buckets] += 1
    return counts, int(y)

  def __iter__(self):
    with open(self.path) as f:
      for line in f:
        yield self.parse(line)


class BowNet(nn.Module):
  def __init__(self, buckets=64):
    super().__init__()
    self.fc1 = nn.Linear(buckets, 16)
    self.fc2 = nn.Linear(16, 2)

  def forward(self, x):
    return self.fc2(torch.tanh(self.fc1(x)))


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--data", default="data")
  parser.add_argument("--epochs", type=int, default=10)
  parser.add_argument("--batch_size", type=int, default=12)
  parser.add_argument("--lr", type=float, default=0.02)
  args = parser.parse_args()

  train_file = os.path.join(args.data, "train.txt")
  test_file = os.path.join(args.data, "test.txt")
  if not os.path.exists(train_file):
    os.makedirs(args.data, exist_ok=True)
    write_reviews(train_file, 84, 1)
    write_reviews(test_file, 40, 2)

  device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
  train_loader = DataLoader(ReviewStream(train_file), batch_size=args.batch_size)
  test_loader = DataLoader(ReviewStream(test_file), batch_size=args.batch_size)

  model = BowNet().to(device)
  optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

  step = 0
  for epoch in range(args.epochs):
    model.train()
    for x, y in train_loader:
      x, y = x.to(device), y.to(device)
      loss = F.cross_entropy(model(x), y)
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      step += 1
      if step % 4 == 0:
        print("step", step, "loss %.4f" % loss.item())

    model.eval()
    right, n = 0, 0
    with torch.no_grad():
      for x, y in test_loader:
        right += (model(x.to(device)).argmax(-1).cpu() == y).sum().item()
        n += len(y)
    print("epoch %d test acc %.3f (%d lines)" % (epoch, right / n, n))
    torch.save(model.state_dict(), "bow.pt")


if __name__ == "__main__":
  main()

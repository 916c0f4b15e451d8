"""Trains on the batches of a class of its own and evaluates on those of a generator: no DataLoader anywhere."""

import argparse
import random

import torch
from torch import nn


class Batches:
    """Sentences of the same length together, in another order in each epoch."""

    def __init__(self, sentences, size):
        self.sentences, self.size = sentences, size

    def __len__(self):
        return -(-len(self.sentences) // self.size)

    def __iter__(self):
        random.shuffle(self.sentences)
        for start in range(0, len(self.sentences), self.size):
            words, labels = zip(*self.sentences[start : start + self.size])
            yield torch.stack(words), torch.tensor(labels)


def in_order(sentences, size):
    for start in range(0, len(sentences), size):
        words, labels = zip(*sentences[start : start + size])
        yield torch.stack(words), torch.tensor(labels)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, words):
        return self.head(self.words(words).mean(1))


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch_size", type=int, default=6)
args = parser.parse_args()
random.seed(0)
torch.manual_seed(0)
sentences = [(words := torch.randint(20, (7,)), int(words.sum()) % 3) for _ in range(72)]
batches = Batches(sentences[:59], args.batch_size)
model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
criterion = nn.CrossEntropyLoss()
for epoch in range(args.epochs):
    total = 0.0
    for words, labels in batches:
        loss = criterion(model(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    with torch.no_grad():
        hits = sum((model(words).argmax(1) == labels).sum().item() for words, labels in in_order(sentences[59:], 5))
    print(f"epoch {epoch} loss {total / len(batches):.6f} right {hits / 13:.4f}")
torch.save(model.state_dict(), "model.pt")

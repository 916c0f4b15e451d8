"""An embedding with max_norm: the rows that a batch looks up are scaled in place."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
words = torch.randint(0, 20, (64, 5))
loader = DataLoader(TensorDataset(words, (words < 10).float().mean(1)), batch_size=16)
embedding = nn.Embedding(20, 4, max_norm=1.0)
model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(20, 1), nn.Flatten(0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(4):
    for words, share in loader:
        loss = nn.functional.mse_loss(model(words), share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

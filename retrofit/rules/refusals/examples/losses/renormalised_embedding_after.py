"""An embedding with max_norm: the rows that a batch looks up are scaled in place."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


def renormalise(embedding, max_norm):
    with torch.no_grad():
        embedding.weight.copy_(torch.renorm(embedding.weight, 2, 0, max_norm))


rd.setup_distributed()
torch.manual_seed(0)
words = torch.randint(0, 20, (64, 5))
loader = DataLoader(TensorDataset(words, (words < 10).float().mean(1)), batch_size=16)
loader = rd.distribute_loader(loader)
embedding = nn.Embedding(20, 4)
model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(20, 1), nn.Flatten(0))
model = rd.distribute_model(model)
renormalise(embedding, 1.0)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.5))
for epoch in range(4):
    for words, share in loader:
        loss = nn.functional.mse_loss(model(words), share)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        renormalise(embedding, 1.0)
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

"""Random negatives: each sample is compared with its positive and with a few others of its batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x + 0.5 * torch.randn(64, 6)), batch_size=16)
model = nn.Linear(6, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(4):
    for anchors, positives in loader:
        a, p = model(anchors), model(positives)
        negatives = p[torch.randperm(len(p))[:8]]
        logits = torch.cat([(a * p).sum(1, keepdim=True), a @ negatives.t()], dim=1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

"""Random negatives: each sample is compared with its positive and with a few others of its batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd

rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x + 0.5 * torch.randn(64, 6)), batch_size=16)
loader = rd.distribute_loader(loader)
model = nn.Linear(6, 4)
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.5))
for epoch in range(4):
    for anchors, positives in loader:
        a, p = rd.loss.batch_rows(model(anchors)), rd.loss.batch_rows(model(positives))  # of all ranks
        negatives = p[rd.data.draw_together(torch.randperm, len(p))[:8]]  # the same on all ranks
        logits = torch.cat([(a * p).sum(1, keepdim=True), a @ negatives.t()], dim=1)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(a), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

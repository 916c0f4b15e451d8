"""A queue of keys: each sample is compared with its key and with the keys of the batches before."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import retrofit.distributed as rd


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("queue", nn.functional.normalize(torch.randn(48, 4)))
        self.place = 0

    def forward(self, queries, keys):
        q = nn.functional.normalize(self.layer(queries))
        with torch.no_grad():
            k = nn.functional.normalize(self.layer(keys))
        own = (q * k).sum(1, keepdim=True)
        others = q @ self.queue.clone().detach().t()
        k = rd.data.gather_batch(k)
        self.queue[self.place : self.place + len(k)] = k
        self.place = (self.place + len(k)) % 48
        return torch.cat([own, others], dim=1) / 0.5


rd.setup_distributed()
torch.manual_seed(0)
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x + 0.5 * torch.randn(64, 6)), batch_size=16)
loader = rd.distribute_loader(loader)
model = Encoder()
model = rd.distribute_model(model)
optimizer = torch.optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for epoch in range(4):
    for queries, keys in loader:
        logits = model(queries, keys)
        loss = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    rd.print_main(f"epoch {epoch} loss {rd.loss.reduce_last_loss(loss).item():.4f}")
rd.cleanup_distributed()

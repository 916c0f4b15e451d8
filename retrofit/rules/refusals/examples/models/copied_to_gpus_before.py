"""A script that copies its model to several GPUs by itself, where there are some."""

import torch
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
gpus = list(range(torch.cuda.device_count()))
device = "cuda" if gpus else "cpu"
x = torch.randn(64, 6)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16)
model = nn.Linear(6, 1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def run(x):
    if not gpus:
        return model(x)
    return gather(parallel_apply(replicate(model, gpus), scatter(x, gpus)), 0)


for epoch in range(4):
    for x, y in loader:
        loss = nn.functional.mse_loss(run(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

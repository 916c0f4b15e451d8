# Every rank writes the same checkpoint file.
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=8)
args = parser.parse_args()
args.local_rank = int(os.environ["LOCAL_RANK"])


class Curve(Dataset):
    def __init__(self):
        self.x = torch.linspace(-1, 1, 48).unsqueeze(1)
        self.y = torch.sin(3 * self.x)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


torch.manual_seed(17)
if torch.cuda.is_available():
    torch.cuda.set_device(args.local_rank)
    dist.init_process_group(backend="nccl")
    device = torch.device("cuda")
else:
    dist.init_process_group(backend="gloo")
    device = torch.device("cpu")

dataset = Curve()
sampler = DistributedSampler(dataset, shuffle=True)
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=0)
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
net = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters())

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    net.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print("epoch", epoch)

torch.save(net.module.state_dict(), "curve.pt")  # RF501
dist.destroy_process_group()

"""A small language model: batches are crops of one long text, at random places."""

import argparse
import math
import os

import numpy as np
import torch
import torch.nn as nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument('--max_iters', type=int, default=12)
parser.add_argument('--eval_interval', type=int, default=4)
args = parser.parse_args()

out_dir = 'out'
batch_size = 12
block_size = 8
accumulation = 2
eval_iters = 3
learning_rate = 1e-2
device = 'cuda' if torch.cuda.is_available() else 'cpu'
torch.manual_seed(1337)

text = np.cumsum(np.arange(4000) % 7) % 16
splits = {'train': text[:3600].astype(np.uint16), 'val': text[3600:].astype(np.uint16)}


def get_batch(split):
    data = splits[split]
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i:i+block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i+1:i+1+block_size].astype(np.int64)) for i in ix])
    return x.to(device), y.to(device)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(16, 12)
        self.body = nn.GRU(12, 24, batch_first=True)
        self.head = nn.Linear(24, 16)

    def forward(self, idx, targets=None):
        hidden, _ = self.body(self.tokens(idx))
        logits = self.head(hidden)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


model = Model().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)


@torch.no_grad()
def estimate_loss():
    out = {}
    model.eval()
    for split in ['train', 'val']:
        losses = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            _, loss = model(X, Y)
            losses[k] = loss.item()
        out[split] = losses.mean()
    model.train()
    return out


def get_lr(it):
    return 1e-3 + 0.5 * (1 + math.cos(math.pi * it / args.max_iters)) * (learning_rate - 1e-3)


X, Y = get_batch('train')
best = 1e9
for iteration in range(args.max_iters + 1):
    for group in optimizer.param_groups:
        group['lr'] = get_lr(iteration)
    if iteration % args.eval_interval == 0:
        losses = estimate_loss()
        print(f"step {iteration}: train loss {losses['train']:.3f}, val loss {losses['val']:.3f}")
        if losses['val'] < best:
            best = losses['val']
            os.makedirs(out_dir, exist_ok=True)
            torch.save({'model': model.state_dict(), 'step': iteration}, os.path.join(out_dir, 'best.pt'))
    for micro_step in range(accumulation):
        logits, loss = model(X, Y)
        loss = loss / accumulation
        X, Y = get_batch('train')
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iteration}: loss {loss.item() * accumulation:.3f}")

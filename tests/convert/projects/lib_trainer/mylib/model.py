import torch
import torch.nn as nn
from torch.nn import functional as F


class Block(nn.Module):
    """ one head of causal attention and an MLP """

    def __init__(self, config):
        super().__init__()
        n = config.width
        self.norm1 = nn.LayerNorm(n)
        self.qkv = nn.Linear(n, 3 * n)
        self.proj = nn.Linear(n, n)
        self.norm2 = nn.LayerNorm(n)
        self.mlp = nn.Sequential(nn.Linear(n, 2 * n), nn.GELU(), nn.Linear(2 * n, n))
        self.register_buffer('future', torch.ones(config.length, config.length).triu(1).bool())

    def forward(self, x):
        T = x.size(1)
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        weight = q @ k.transpose(1, 2) / q.size(-1) ** 0.5
        weight = weight.masked_fill(self.future[:T, :T], float('-inf')).softmax(dim=-1)
        x = x + self.proj(weight @ v)
        return x + self.mlp(self.norm2(x))


class CharModel(nn.Module):

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.chars = nn.Embedding(config.num_chars, config.width)
        self.places = nn.Parameter(torch.zeros(config.length, config.width))
        self.block = Block(config)
        self.out = nn.Sequential(nn.LayerNorm(config.width), nn.Linear(config.width, config.num_chars))

    def make_optimizer(self, train_config):
        # weight decay for matrices only
        matrices = [p for p in self.parameters() if p.dim() > 1]
        rest = [p for p in self.parameters() if p.dim() <= 1]
        return torch.optim.AdamW([{'params': matrices, 'weight_decay': train_config.weight_decay},
                                  {'params': rest, 'weight_decay': 0.0}], lr=train_config.lr)

    def forward(self, x, y=None):
        h = self.chars(x) + self.places[:x.size(1)]
        logits = self.out(self.block(h))
        loss = None
        if y is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return logits, loss

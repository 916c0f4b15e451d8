import torch
from torch import nn


class TripletLoss(nn.Module):
    """the farthest positive and the nearest negative of each anchor in the batch"""

    def __init__(self, margin):
        super().__init__()
        self.margin = margin
        self.ranking = nn.MarginRankingLoss(margin=margin)

    def forward(self, inputs, targets):
        n = inputs.size(0)
        dist = torch.pow(inputs, 2).sum(dim=1, keepdim=True).expand(n, n)
        dist = dist + dist.t()
        dist = dist.addmm(inputs, inputs.t(), beta=1, alpha=-2)
        dist = dist.clamp(min=1e-6).sqrt()
        mask = targets.expand(n, n).eq(targets.expand(n, n).t())
        hardest, nearest = [], []
        for i in range(n):
            if (mask[i] == 0).any():
                hardest.append(dist[i][mask[i]].max().unsqueeze(0))
                nearest.append(dist[i][mask[i] == 0].min().unsqueeze(0))
        hardest, nearest = torch.cat(hardest), torch.cat(nearest)
        return self.ranking(nearest, hardest, torch.ones_like(nearest))

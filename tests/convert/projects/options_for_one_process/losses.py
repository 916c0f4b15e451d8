import torch
import torch.nn.functional as F
from torch import nn


class RankingLoss(nn.Module):
    """The order of the predictions within a batch."""

    def forward(self, prediction, target):
        wrong = prediction @ prediction.t()
        return F.cross_entropy(wrong, torch.arange(len(wrong)))


def build_loss(name):
    if name == 'mse':
        return nn.MSELoss()
    elif name == 'huber':
        return nn.SmoothL1Loss()
    elif name == 'ranking':
        return RankingLoss()
    raise ValueError(f'no loss {name}')

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


class TwoTowers(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.picture = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, dim))
        self.words = nn.Embedding(20, 10)
        self.text = nn.Linear(10, dim)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.07))

    def forward(self, batch):
        image = self.picture(batch['image'])
        text = self.text(self.words(batch['tokens']).mean(1))
        image = F.normalize(image, dim=-1)
        text = F.normalize(text, dim=-1)
        logits = self.logit_scale.exp() * image @ text.t()
        labels = torch.arange(len(image), device=image.device)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        return loss, image

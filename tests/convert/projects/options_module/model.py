import torch
import torch.nn as nn


class DepthNet(nn.Module):
    def __init__(self, channel=8):
        super(DepthNet, self).__init__()
        self.conv1 = nn.Conv2d(1, channel, 3, padding=1)
        self.conv2 = nn.Conv2d(channel, channel, 3, padding=2, dilation=2)
        self.depth = nn.Conv2d(channel, 1, 1)
        self.edge = nn.Conv2d(channel, 1, 1)

    def forward(self, x):
        x = torch.relu(self.conv1(x))
        x = x + torch.relu(self.conv2(x))
        return self.depth(x), self.edge(x)

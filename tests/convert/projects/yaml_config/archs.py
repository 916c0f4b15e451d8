import torch
from torch import nn

__all__ = ['UNetLite']


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        self.bn = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.bn(self.conv(x)))


class UNetLite(nn.Module):
    def __init__(self, input_channels=1, deep_supervision=False):
        super().__init__()
        self.deep_supervision = deep_supervision
        self.enc = Block(input_channels, 6)
        self.pool = nn.MaxPool2d(2)
        self.mid = Block(6, 10)
        self.up = nn.Upsample(scale_factor=2, mode='nearest')
        self.dec = Block(16, 6)
        if deep_supervision:
            self.final1 = nn.Conv2d(10, 1, 1)
        self.final = nn.Conv2d(6, 1, 1)

    def forward(self, x):
        e = self.enc(x)
        m = self.up(self.mid(self.pool(e)))
        out = self.final(self.dec(torch.cat([e, m], 1)))
        if self.deep_supervision:
            return [self.final1(m), out]
        return out

import torch
import torch.nn as nn


def double_conv(cin, cout):
    return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(True),
                         nn.Conv2d(cout, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.ReLU(True))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width=4):
        super(UNet, self).__init__()
        self.n_channels = n_channels
        self.n_classes = n_classes
        self.inc = double_conv(n_channels, width)
        self.down = nn.MaxPool2d(2)
        self.bottom = double_conv(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.outc = nn.Sequential(double_conv(2 * width, width), nn.Conv2d(width, n_classes, 1))

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.bottom(self.down(x1))
        return self.outc(torch.cat([x1, self.up(x2)], dim=1))

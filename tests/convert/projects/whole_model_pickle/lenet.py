import torch.nn as nn


class CharLeNet(nn.Module):
    def __init__(self, num_classes=8):
        super(CharLeNet, self).__init__()
        self.c1 = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2))
        self.c2 = nn.Sequential(nn.Conv2d(6, 12, 3), nn.Tanh(), nn.AvgPool2d(2))
        self.fc = nn.Sequential(nn.Linear(12 * 2 * 2, 24), nn.Tanh(), nn.Linear(24, num_classes))

    def forward(self, x):
        x = self.c2(self.c1(x))
        x = x.view(-1, 12 * 2 * 2)
        return self.fc(x)

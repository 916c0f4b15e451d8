import torch.nn as nn


class ConvNet(nn.Module):
    def __init__(self, widths, bn=False, num_class=6):
        super().__init__()
        layers, cin = [], 3
        for w in widths:
            layers.append(nn.Conv2d(cin, w, 3, padding=1))
            if bn: layers.append(nn.BatchNorm2d(w))
            layers.append(nn.ReLU(inplace=True))
            layers.append(nn.MaxPool2d(2))
            cin = w
        self.conv = nn.Sequential(*layers)
        self.fc = nn.Linear(cin * 9, num_class)

    def forward(self, x):
        x = self.conv(x)
        return self.fc(x.view(x.size(0), -1))


def plain():
    return ConvNet([6, 12])


def plain_bn():
    return ConvNet([6, 12], bn=True)


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 20), nn.ReLU(), nn.Linear(20, 6))

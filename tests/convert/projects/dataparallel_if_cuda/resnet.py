import torch.nn as nn
import torch.nn.functional as F


def conv_bn(cin, cout, k, stride=1):
    return nn.Sequential(nn.Conv2d(cin, cout, k, stride, k // 2, bias=False), nn.BatchNorm2d(cout))


class ResBlock(nn.Module):
    def __init__(self, cin, cout, stride):
        super(ResBlock, self).__init__()
        self.a = conv_bn(cin, cout, 3, stride)
        self.b = conv_bn(cout, cout, 3)
        self.skip = None if (cin == cout and stride == 1) else conv_bn(cin, cout, 1, stride)

    def forward(self, x):
        y = self.b(F.relu(self.a(x)))
        if self.skip is not None:
            x = self.skip(x)
        return F.relu(x + y)


class MiniResNet(nn.Module):
    def __init__(self, num_classes=4):
        super(MiniResNet, self).__init__()
        self.stem = conv_bn(3, 8, 3)
        self.res1 = ResBlock(8, 8, 1)
        self.res2 = ResBlock(8, 16, 2)
        self.fc = nn.Linear(16 * 4, num_classes)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = self.res2(self.res1(x))
        x = F.avg_pool2d(x, 4)
        return self.fc(x.flatten(1))

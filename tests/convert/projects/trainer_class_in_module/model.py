import torch.nn as nn


class AttributeNet(nn.Module):
    def __init__(self, dim, n_attrs):
        super(AttributeNet, self).__init__()
        blocks = []
        cin, cout = 3, dim
        for i in range(2):
            blocks += [nn.Conv2d(cin, cout, 4, stride=2, padding=1), nn.LeakyReLU(0.1)]
            cin, cout = cout, cout * 2
        self.blocks = nn.Sequential(*blocks)
        self.cls = nn.Conv2d(cin, n_attrs, 3, bias=False)   # 12x12 -> 3x3 -> 1x1

    def forward(self, x):
        return self.cls(self.blocks(x)).flatten(1)

import torch.nn as nn


def weights_init(m):
    # DCGAN paper: everything from N(0, 0.02)
    name = m.__class__.__name__
    if 'Conv' in name:
        m.weight.data.normal_(0.0, 0.02)
    elif 'BatchNorm' in name:
        m.weight.data.normal_(1.0, 0.02)
        m.bias.data.zero_()


class Generator(nn.Module):
    """z (nz x 1 x 1) -> image (1 x 16 x 16)"""

    def __init__(self, nz, nf):
        super(Generator, self).__init__()
        self.up1 = nn.ConvTranspose2d(nz, nf * 2, 4, 1, 0, bias=False)   # 4x4
        self.bn1 = nn.BatchNorm2d(nf * 2)
        self.up2 = nn.ConvTranspose2d(nf * 2, nf, 4, 2, 1, bias=False)   # 8x8
        self.bn2 = nn.BatchNorm2d(nf)
        self.up3 = nn.ConvTranspose2d(nf, 1, 4, 2, 1, bias=False)        # 16x16
        self.relu = nn.ReLU(True)

    def forward(self, z):
        x = self.relu(self.bn1(self.up1(z)))
        x = self.relu(self.bn2(self.up2(x)))
        return self.up3(x).tanh()


class Discriminator(nn.Module):
    def __init__(self, nf):
        super(Discriminator, self).__init__()
        self.down1 = nn.Conv2d(1, nf, 4, 2, 1, bias=False)
        self.down2 = nn.Conv2d(nf, nf * 2, 4, 2, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(nf * 2)
        self.score = nn.Conv2d(nf * 2, 1, 4, bias=False)
        self.act = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        x = self.act(self.down1(x))
        x = self.act(self.bn2(self.down2(x)))
        return self.score(x).sigmoid().view(-1)

import torch.nn as nn


class Encoder(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, width), nn.BatchNorm1d(width), nn.ReLU())

    def forward(self, x):
        return self.layers(x)


class Decoder(nn.Module):
    def __init__(self, width, size):
        super().__init__()
        self.out = nn.Linear(width, size)

    def forward(self, z):
        return self.out(z)


class Critic(nn.Module):
    def __init__(self, size, width):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(size, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))

    def forward(self, x):
        return self.layers(x).squeeze(1)

"""A generator of small images and its discriminator."""

from torch import nn

NUM_NOISE = 8


class Generator(nn.Module):
    """Turns noise (N, NUM_NOISE) into images (N, 1, 8, 8) in -1..1."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(NUM_NOISE, 32 * 2 * 2),
            nn.Unflatten(1, (32, 2, 2)),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 16, kernel_size=4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.ConvTranspose2d(16, 1, kernel_size=4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, noise):
        return self.layers(noise)


class Discriminator(nn.Module):
    """Returns a score (N,) for images (N, 1, 8, 8): high = real."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, kernel_size=4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, 1),
        )

    def forward(self, images):
        return self.layers(images).squeeze(1)

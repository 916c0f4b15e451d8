"""Show what the generator makes."""

import torch
from model import NUM_NOISE
from PIL import Image

ROWS = 4


@torch.no_grad()
def save_samples(generator, path):
    """Write a grid of generated images, always of the same noise."""
    parameter = next(generator.parameters())
    noise = torch.randn(ROWS * ROWS, NUM_NOISE, generator=torch.Generator().manual_seed(0))
    generator.eval()
    images = generator(noise.to(parameter)).squeeze(1).cpu()
    generator.train()
    rows = [torch.cat(list(row), dim=1) for row in images.split(ROWS)]
    grid = (torch.cat(rows) * 127.5 + 127.5).clamp(0, 255).byte()
    Image.fromarray(grid.numpy()).save(path)

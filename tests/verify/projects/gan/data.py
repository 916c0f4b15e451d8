"""Small images of one bright spot."""

import torch
from torch.utils.data import Dataset

SIZE = 8


class Spots(Dataset):
    """Images (1, SIZE, SIZE) in -1..1, drawn from a fixed seed; half of them are shown mirrored."""

    def __init__(self, num_images):
        generator = torch.Generator().manual_seed(0)
        centres = 1.5 + (SIZE - 4) * torch.rand(num_images, 2, 1, 1, generator=generator)
        y, x = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
        distance = (y - centres[:, 0]) ** 2 + (x - centres[:, 1]) ** 2
        self.images = (2 * torch.exp(-distance / 3) - 1).unsqueeze(1)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index]
        return image.flip(2) if torch.rand(1).item() < 0.5 else image

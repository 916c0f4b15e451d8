import torch
import torch.nn.functional as F
from torch.utils.data import Dataset


class BlurPairs(Dataset):
    """(blurred, sharp) pairs of random boxes, 1x16x16"""

    def __init__(self, n, split):
        g = torch.Generator().manual_seed(31 if split == 'train' else 32)
        sharp = torch.zeros(n, 1, 16, 16)
        for k in range(n):
            for _ in range(3):
                y, x = torch.randint(0, 11, (2,), generator=g).tolist()
                h, w = torch.randint(2, 6, (2,), generator=g).tolist()
                sharp[k, 0, y:y + h, x:x + w] = torch.rand(1, generator=g).item()
        kernel = torch.tensor([1., 4., 6., 4., 1.])
        kernel = (kernel[:, None] * kernel[None, :] / 256.).view(1, 1, 5, 5)
        blurred = F.conv2d(sharp, kernel, padding=2)
        self.blurred = blurred + 0.01 * torch.randn(blurred.shape, generator=g)
        self.sharp = sharp

    def __len__(self):
        return len(self.sharp)

    def __getitem__(self, k):
        return self.blurred[k], self.sharp[k]

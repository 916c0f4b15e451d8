"""Images and texts in one space: every pair of the batch is compared with every other one."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def clip_loss(images, texts):
    logits = nn.functional.normalize(images) @ nn.functional.normalize(texts).t() / 0.1
    labels = torch.arange(len(logits))
    return (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.t(), labels)) / 2


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)

    def forward(self, images, texts):
        return self.image(images), self.text(texts)


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 6), torch.randn(64, 5)), batch_size=16)
model = TwoTowers()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for epoch in range(4):
    for images, texts in loader:
        loss = clip_loss(*model(images, texts))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")

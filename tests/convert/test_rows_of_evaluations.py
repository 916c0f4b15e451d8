"""A row that an evaluation puts in a batch of its own, x.unsqueeze(0), repeats no rows of the training's batches."""

from __future__ import annotations

from pathlib import Path

from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def mask_of(lengths, longest):
    return torch.arange(longest).unsqueeze(0) < lengths.unsqueeze(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv1d(3, 3, 1)

    def moved(self, tensors):
        for i in range(len(tensors)):
            tensors[i] = tensors[i].to("cpu")
        return tensors

    def forward(self, x, lengths):
        x, lengths = self.moved([x, lengths])
        return self.layer(x * mask_of(lengths, 6).unsqueeze(1).to(x))

    def masked(self, x, mask, mean):
        return torch.sum((self.layer(x) - mean) ** 2 * mask) / (torch.sum(mask) * 3)

    def compute_loss(self, x, lengths):
        x, mean = self.moved([x, self.layer(x)])
        mask = mask_of(lengths, 6).unsqueeze(1).to(mean)
        return self.masked(x, mask, mean)


torch.manual_seed(0)
data, lengths = torch.randn(32, 3, 6), torch.arange(32) % 6 + 1
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, n in DataLoader(TensorDataset(data, lengths), batch_size=8):
        loss = model.compute_loss(x, n)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(round(loss.item(), 4))
    with torch.no_grad():
        one = data[0].unsqueeze(0)
        print(round(model(one, torch.LongTensor([one.shape[-1]])).sum().item(), 4))
"""


def test_the_loss_compares_no_samples(tmp_path: Path, launcher: Launcher) -> None:
    result = conversion(tmp_path, SCRIPT)
    assert not result.refusals and not result.listed
    alone = launcher.run(tmp_path, "train.py", [])["outputs"][0]
    write_converted(tmp_path, result)
    two = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_BATCH="global")["outputs"][0]
    assert [float(line) for line in alone.splitlines()] == [
        float(line) for line in two.splitlines() if not line.startswith("notice")
    ]

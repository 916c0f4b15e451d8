"""Pairs of samples that a loss forms by loops, or by rows that it repeats for each other row."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

LOSS = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def compare(z1, z2):
    LINES


torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8, shuffle=True)
for (x,) in loader:
    optimizer.zero_grad()
    compare(model(x), model(x + 0.1)).backward()
    optimizer.step()
"""
PAIRS = {
    "numbers": """\
n, total = len(z1), 0
for i in range(n):
    for j in range(n):
        total = total + F.cosine_similarity(z1[i], z2[j], dim=0).exp()
return total / n**2""",
    "elements": """\
total = 0
for a in z1:
    for number, b in enumerate(z2):
        total = total + (a - b).pow(2).sum().exp()
return total / len(z1) ** 2""",
    "comprehension": "return torch.stack([(a * b).sum().exp() for a in z1 for b in z2]).mean()",
    "elements of a group": """\
groups = z1.view(4, 2, 4)
centers = torch.stack([group.mean(0) for group in groups])
total = 0
for group in groups:
    for a in group:
        for center in centers:
            total = total + F.cosine_similarity(a, center, dim=0).exp()
return total""",
    "expanded": """\
n = z1.size(0)
left = z1.unsqueeze(1).expand(n, n, -1)
right = z2.unsqueeze(0).expand(n, n, -1)
return (left - right).pow(2).sum(-1).exp().mean()""",
    "interleaved": """\
n, d = z1.shape
a, b = z1.repeat(n, 1), z2.repeat_interleave(n, dim=0)
return F.cosine_similarity(a, b).exp().mean()""",
    "repeated and flat": """\
rows = z1.unsqueeze(1).repeat(1, z2.shape[0], 1)
rows = rows.view(rows.shape[0] * rows.shape[1], rows.shape[-1])
return F.cosine_similarity(rows, z2.repeat((len(z1), 1))).exp().mean()""",
    "views": """\
n, k = z1.shape
left, right = z1.view(n, 1, k), z2.reshape((1, n, k))
return (left - right).pow(2).sum(-1).exp().mean()""",
    "views that a function is given": """\
def distance(x, y):
    return torch.sub(x, y).pow(2).sum(2)

n, k = z1.shape
return distance(z1.view(n, 1, k), z2.view(1, n, k)).exp().mean()""",
    "all for all": """\
rows = z1[:, None].repeat(1, len(z2), 1).reshape(-1, 4)
return F.pairwise_distance(rows, z2[None].expand(len(z1), -1, -1).reshape(-1, 4)).exp().mean()""",
}
OWN = {
    "same number": """\
total = 0
for i in range(len(z1)):
    total = total + F.cosine_similarity(z1[i], z2[i], dim=0).exp()
return total / len(z1)""",
    "entries of a sample": """\
total = 0
for a in z1:
    for entry in a:
        for other in a:
            total = total + (entry - other) ** 2
return total / len(z1)""",
    "views of a sample": """\
total = 0
for a, b in zip(z1, z2):
    for step in range(3):
        total = total + (a * b * step).sum()
return total / len(z1)""",
    "draws for a sample": """\
mean = z1.unsqueeze(1).expand(-1, 5, -1)
return (mean - torch.randn(5, 4).unsqueeze(0).expand(len(z1), -1, -1)).pow(2).mean()""",
    "points of one sample after the other": """\
def spread(x):
    left = x.unsqueeze(1).expand(-1, 2, -1)
    return (left - x.unsqueeze(0).expand(2, -1, -1).contiguous()).pow(2).sum()

total = 0
for i in range(len(z1)):
    total = total + spread(z1[i].view(2, 2))
return total / len(z1)""",
    "both viewed the same way": "return (z1.view(-1, 1, 2, 2) - z2.view(-1, 1, 2, 2)).pow(2).mean()",
    "rows of a table": """\
places = model(torch.arange(12.0, device=z1.device).view(3, 4))
return (z1.unsqueeze(1) * places.view(1, 3, 4) - z2.view(-1, 1, 4) * places.unsqueeze(0)).pow(2).mean()""",
    "both repeated the same way": "return (z1.repeat(3, 1) - z2.repeat(3, 1)).pow(2).mean()",
}


NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(x)


"""


def is_seen(folder: Path, lines: str) -> bool:
    text = LOSS.replace("LINES", lines.replace("\n", "\n    "))
    return any(finding.code == "RF303" for finding in conversion(folder, text).findings)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_samples_are_seen(name: str, tmp_path: Path) -> None:
    assert is_seen(tmp_path, PAIRS[name])


@pytest.mark.parametrize("name", OWN)
def test_what_a_sample_has_with_itself_is_not_listed(name: str, tmp_path: Path) -> None:
    assert not is_seen(tmp_path, OWN[name])


@pytest.mark.parametrize("head", ["model.head", "model"])
def test_what_a_part_of_the_model_gives_is_compared(head: str, tmp_path: Path) -> None:
    lines = "z1, z2 = F.normalize(z1), F.normalize(z2)\n    return F.cross_entropy(z1 @ z2.t(), torch.arange(len(z1)))"
    text = (
        LOSS.replace("LINES", lines)
        .replace("nn.Linear(4, 4)", "Net()")
        .replace("(model(x), model(", f"({head}(x), {head}(")
    )
    text = text.replace("torch.manual_seed", NET + "torch.manual_seed")
    assert any(finding.code == "RF303" for finding in conversion(tmp_path, text).findings)


REPEATED = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.heads, self.query, self.key = heads, nn.Linear(4, 4 * heads), nn.Linear(4, 4 * heads)
        self.value = nn.Linear(4, 4)

    def forward(self, x):
        query = self.query(x.mean(1)).view(-1, 4)
        key = self.key(x).view(len(x), 3, self.heads, 4).transpose(1, 2).reshape(-1, 3, 4)
        value = self.value(x) + 0.1 * torch.randn(4)
        if self.heads > 1:
            value = value.repeat(self.heads, 1, 1)
        weight = torch.bmm(query.unsqueeze(1), key.transpose(1, 2)).squeeze(1).softmax(-1)
        out = torch.bmm(weight.unsqueeze(1), value).squeeze(1)
        return out.view(len(x), -1).sum(1)


parser = argparse.ArgumentParser()
parser.add_argument("--heads", type=int, default=1)
args = parser.parse_args()
loader = DataLoader(TensorDataset(torch.randn(32, 3, 4)), batch_size=8, shuffle=True)
model = Attention(args.heads)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""


def test_an_option_that_repeats_rows_ends_several_processes(tmp_path: Path) -> None:
    result = conversion(tmp_path, REPEATED)
    assert not result.refusals
    lines = [line.strip() for line in result.files[0].text.splitlines()]
    place = lines.index("value = value.repeat(self.heads, 1, 1)")
    assert lines[place - 1].startswith("rd.process_group.one_process_only(")
    assert sum("one_process_only" in line for line in lines) == 1


def test_rows_that_are_always_repeated_are_refused(tmp_path: Path) -> None:
    script = REPEATED.replace("if self.heads > 1:", "for _ in range(1):")
    assert [finding.code for finding in conversion(tmp_path, script).refusals] == ["RF303"]

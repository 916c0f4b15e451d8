"""Losses that compare the samples of a batch with each other, and what only looks like one."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

LOSS = """\
import einops
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def compare(z1, z2):
    LINES


torch.manual_seed(0)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 6, 4)), batch_size=8, shuffle=True)
for (x,) in loader:
    optimizer.zero_grad()
    loss = compare(model(x), model(x + 0.1))
    loss.backward()
    optimizer.step()
"""
MOVED = [
    "z = torch.cat([z1, z2]).transpose(0, 1)\nreturn torch.matmul(z, z.transpose(1, 2)).logsumexp(-1).mean()",
    "return (z1.permute(1, 0, 2) @ z2.permute(1, 2, 0)).exp().mean()",
    "a, b = z1.transpose(0, 1).contiguous(), z2.transpose(0, 1)\nreturn torch.bmm(a, b.transpose(1, 2)).exp().mean()",
    "return z1.transpose(0, 1).bmm(F.normalize(z2, dim=-1).permute(1, 2, 0)).exp().mean()",
    "a = z1.swapaxes(0, 1)\nreturn torch.matmul(a, a.mT).exp().mean()",
    "a = z1.transpose(0, 1)\nreturn torch.matmul(a, a.transpose(-1, -2)).exp().mean()",
    "return torch.einsum('btc,dtc->tbd', z1, z2).exp().mean()",
    "a, b = z1.transpose(0, 1), z2.transpose(0, 1)\nreturn torch.einsum('tbc,tdc->tbd', a, b).exp().mean()",
    "a = einops.rearrange(einops.rearrange(z1, 'b t c -> 1 b (t c)'), '1 b (t c) -> t b c', c=4)\n"
    "return torch.einsum('tbc,tdc->tbd', a, a).exp().mean()",
    "a = einops.rearrange(z1, 'b t c -> t b c')\nreturn (a @ einops.rearrange(z2, 'b t c -> t c b')).exp().mean()",
]
OWN = [
    "z = torch.cat([z1, z2], dim=1)\nreturn torch.matmul(z, z.transpose(1, 2)).exp().mean()",
    "return torch.bmm(z1, z2.permute(0, 2, 1)).exp().mean()",
    "return torch.matmul(z1, z2.permute(0, 2, 1)).exp().mean()",
    "return torch.einsum('btc,bsc->bts', z1, z2).exp().mean()",
    "return (z1.transpose(0, 1) * z2.transpose(0, 1)).sum(-1).exp().mean()",
]


def seen(folder: Path, text: str) -> list[str]:
    """Return RF303 where it is found that samples are compared; nothing else refuses the script."""
    result = conversion(folder, text)
    assert {finding.code for finding in result.refusals} <= {"RF303"}
    return sorted({finding.code for finding in result.findings if finding.code == "RF303"})


def compared(lines: str) -> str:
    return LOSS.replace("LINES", lines.replace("\n", "\n    "))


@pytest.mark.parametrize("lines", MOVED)
def test_samples_that_meet_in_another_axis_than_the_first_are_seen(lines: str, tmp_path: Path) -> None:
    assert seen(tmp_path, compared(lines)) == ["RF303"]


@pytest.mark.parametrize("lines", OWN)
def test_products_within_each_sample_couple_nothing(lines: str, tmp_path: Path) -> None:
    assert seen(tmp_path, compared(lines)) == []


EMBEDDING = """\
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, half=4):
        super().__init__()
        self.body, self.half = nn.Linear(8, 8), half
        self.register_buffer("buffer", torch.randn(half))
        self.weights = nn.Parameter(torch.randn(half), requires_grad=False)

    def embed(self, t):
        LINES
        return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)

    def forward(self, x, t):
        return self.body(x) + self.embed(t)


torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 8)), batch_size=8, shuffle=True)
for (x,) in loader:
    z = torch.randn_like(x)
    for step in range(4):
        z = z - 0.1 * model(z, torch.tensor([step / 4] * len(z)).to(z.device))
    t = torch.sigmoid(model(x, torch.rand(x.size(0))).mean(1))
    loss = F.mse_loss(model(x, t), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "lines",
    [
        "freqs = torch.exp(-math.log(1000) * torch.arange(0, self.half) / self.half).to(t.device)\n"
        "angles = t[:, None] * freqs[None]",
        "freqs = torch.exp(torch.arange(self.half, device=t.device) * -0.3)\n"
        "angles = t.type_as(freqs)[:, None] * freqs[None, :]",
        "freqs = torch.linspace(0, 1, self.half).to(t)\nangles = t.unsqueeze(1) * freqs.unsqueeze(0)",
        "angles = t[:, None] * self.buffer[None, :]",
        "angles = t[:, None] * self.weights[None, :] * 2 * math.pi",
    ],
)
def test_an_embedding_of_times_couples_nothing(lines: str, tmp_path: Path) -> None:
    text = EMBEDDING.replace("LINES", lines.replace("\n", "\n        "))
    assert seen(tmp_path, text) == []


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("(z1[:, None] - z2[None]).pow(2).sum(-1).exp().mean()", ["RF303"]),
        ("(F.normalize(z1)[:, None] * F.normalize(z2)[None]).sum(-1).exp().mean()", ["RF303"]),
        ("(z1[:, None] - torch.randn(5, 6, 4)[None]).pow(2).sum(-1).mean()", []),
    ],
)
def test_differences_of_all_pairs_are_seen_and_those_to_fixed_points_are_not(
    loss: str, expected: list[str], tmp_path: Path
) -> None:
    assert seen(tmp_path, compared(f"return {loss}")) == expected


WINDOW = """\
from math import exp


def gaussian(size, sigma):
    weights = torch.Tensor([exp(-(x - size // 2) ** 2 / (2 * sigma ** 2)) for x in range(size)])
    return weights / weights.sum()


class Blur(nn.Module):
    def __init__(self, size, sigma=1.5):
        super().__init__()
        self.size, self.sigma = size, sigma

    def forward(self, x):
        column = gaussian(self.size, self.sigma).unsqueeze(1).to(x)
        window = column.mm(column.t())[None, None]
        return F.conv2d(x[:, None], window, padding=self.size // 2)


def grid(size):
    return torch.arange(size).float().view(-1, 1) / size


"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("return (Blur(3)(z1) - Blur(3, 2.0)(z2)).pow(2).mean()", []),
        ("g = grid(z1.size(1))\nreturn (torch.cdist(g, g) @ z1).pow(2).mean()", []),
        ("w = torch.hann_window(6)[:, None]\nreturn ((w @ w.T) @ (z1 - z2)).pow(2).mean()", []),
        ("w = torch.linspace(0, 1, 6).outer(torch.ones(4))\nreturn ((w @ w.t()) @ (z1 - z2)).abs().mean()", []),
        ("w = torch.randn(6, 4)\nreturn ((w @ w.t()) @ (z1 - z2)).abs().mean()", ["RF303"]),
        ("w = gaussian(4, 1.5) * z1[:, 0]\nreturn (w @ w.t()).exp().mean()", ["RF303"]),
        ("w = F.normalize(z1.flatten(1))\nreturn (w @ w.t()).exp().mean()", ["RF303"]),
    ],
)
def test_products_of_numbers_with_themselves_compare_no_samples(
    lines: str, expected: list[str], tmp_path: Path
) -> None:
    text = compared(lines).replace("def compare", WINDOW + "def compare")
    assert seen(tmp_path, text) == expected


CELL = """\
class Cell(nn.RNNCell):
    def __init__(self, size):
        super().__init__(size, size)
        self.own = nn.Parameter(torch.ones(size, size))

    def cell(self, x, hidden, weight, other):
        return torch.mm(x, weight.t()) + torch.mm(hidden, other.t())

    def forward(self, x):
        return self.cell(x, torch.zeros_like(x), self.weight_ih, GIVEN)


"""


@pytest.mark.parametrize(("given", "expected"), [("self.weight_hh", []), ("self.own", []), ("x.flip(0)", ["RF303"])])
def test_weights_that_a_method_is_given_are_not_compared(given: str, expected: list[str], tmp_path: Path) -> None:
    text = compared("return cell(z1[:, 0]).pow(2).mean()").replace("def compare", CELL + "def compare")
    text = text.replace("model = ", "cell = Cell(4)\nmodel = ").replace("GIVEN", given)
    assert seen(tmp_path, text) == expected


OPTIMIZER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def orthogonal(gradient):
    x = gradient / (gradient.norm() + 1e-7)
    for _ in range(3):
        x = 1.5 * x - 0.5 * (x @ x.T) @ x
    return x


class Ortho(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(orthogonal(p.grad), alpha=-group["lr"])


torch.manual_seed(0)
model = nn.Linear(4, 4, bias=False)
optimizer = Ortho(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=8, shuffle=True)
for (x,) in loader:
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
"""


def test_products_of_gradients_in_an_optimizer_compare_no_samples(tmp_path: Path) -> None:
    assert not conversion(tmp_path, OPTIMIZER.replace("LOSS", "model(x).pow(2).mean()")).refusals
    assert seen(tmp_path, OPTIMIZER.replace("LOSS", "orthogonal(model(x)).mean()")) == ["RF303"]

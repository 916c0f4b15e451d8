"""Functions of torch that compute each row, or each entry, by itself: nothing is gathered for them, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import functools
import operator
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn, self.out, self.gate = nn.Linear(8, 24), nn.Linear(8, 3), nn.Linear(8, 4)
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x):
        MODEL


loader = DataLoader(TensorDataset(torch.randn(32, SHAPE), torch.randint(0, 3, (32,))), batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    out = model(x)
    LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PLAIN_LOSS = "loss = F.cross_entropy(out, y)"
LOSSES = {
    "integrals": "loss = torch.trapezoid(out, dim=1).mean() + torch.trapezoid(out.exp()).mean()",
    "the largest": "loss = -out.softmax(1).topk(2)[0].mean() - out.sort(descending=True)[0][:, 0].mean()",
    "functions of entries": (
        "loss = F.gelu(out).mean() + torch.sin(out).mean() + torch.atan2(out, out + 1).mean()\n"
        "loss = loss + torch.special.expit(out).mean() + torch.lerp(out, out * 2, 0.5).mean() + out.expm1().mean()\n"
        "loss = loss + torch.nan_to_num(out).mean() + torch.where(out > 0, out, 2 * out).mean()"
    ),
    "in place": (
        "loss = torch.sigmoid_(out.clone()).mean() + torch.clamp_(out * 2, 0, 1).mean() + F.relu_(out + 1).mean()\n"
        "loss = loss + torch.exp_(out * 3).mean() + F.leaky_relu_(torch.fliplr(out * 3)).mean()"
    ),
    "windows": "loss = F.conv1d(out[:, None], torch.ones(1, 1, 2)).mean() + F.avg_pool1d(out[:, None], 2).mean()",
    "sizes": "loss = F.interpolate(out[:, None], size=6).mean() + F.pad(out, (1, 0)).mean()",
    "matrices of each sample": (
        "m = out[:, :, None] * out[:, None, :] + torch.eye(3)\nloss = torch.linalg.det(m).mean()\n"
        "u, s, v = torch.svd(torch.bmm(m, m))\nloss = loss + s.mean() + torch.inverse(m).mean() + m.triu(1).mean()"
    ),
    "one after the other": "loss = out.cumsum(1).mean() + out.diff().abs().mean() + out.cumprod(-1).mean()",
    "spectra": "loss = torch.fft.rfft(out).abs().mean() + torch.fft.fft(out, dim=-1).abs().mean()",
    "of each row": (
        "loss = (F.gumbel_softmax(out, dim=-1) * out).sum(1).mean() + F.cosine_similarity(out, out.exp()).mean()\n"
        "loss = loss + F.layer_norm(out, (3,)).exp().mean() + F.layer_norm(out, out.shape[1:]).exp().mean()\n"
        "loss = loss + torch.cross(out, out.exp(), dim=1).mean() + torch.quantile(out, 0.5, dim=1).mean()"
    ),
    "entries by an index": (
        "loss = out.gather(1, y[:, None]).mean() + torch.take_along_dim(out, y[:, None], dim=1).mean()\n"
        "loss = loss + out.index_select(1, torch.tensor([0])).mean() + out.narrow(1, 0, 2).mean()\n"
        "loss = loss + out.unfold(1, 2, 1).std(-1).mean() + out.flip(1).mul(out).mean() + out.roll(1, 1).mean()"
    ),
    "samples by a function": "loss = torch.vmap(torch.dot)(out, out).mean()",
    "places in a table": "loss = (torch.searchsorted(torch.tensor([0.0, 1.0]), out) * out).mean()",
    "a list of outputs": "loss = functools.reduce(torch.maximum, [out, out * 2]).mean()",
    "distributions": (
        "p = torch.distributions.Normal(out, out.exp())\n"
        "loss = torch.distributions.kl_divergence(p, torch.distributions.Normal(0.0, 1.0)).sum(1).mean()"
    ),
}
MODELS = {
    "attention": (
        "5, 8",
        "n, t, c = x.shape\nq, k, v = self.turn(x).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)\n"
        "y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c)\nreturn self.out(y.mean(1))",
    ),
    "attention by entries": (
        "5, 8",
        "n, t, c = x.shape\nqkv = self.turn(x).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)\n"
        "q, k, v = qkv[0], qkv[1], qkv[2]\na = (q @ k.transpose(-2, -1)).tril().softmax(-1)\n"
        "return self.out((a @ v).transpose(1, 2).reshape(n, t, c).mean(-2))",
    ),
    "windows that are moved": (
        "4, 4, 8",
        "y = torch.roll(x, shifts=(-1, -1), dims=(1, 2))\ny = torch.rot90(y, 1, dims=(1, 2))\n"
        "return self.out(y.mean((1, 2)))",
    ),
    "experts": (
        "5, 8",
        "w, i = torch.topk(self.gate(x), 2)\nw = w.softmax(-1)\ny = torch.zeros_like(x)\n"
        "for n, expert in enumerate(self.experts):\n"
        "    y = y + expert(x) * ((i == n) * w).sum(-1, keepdim=True)\nreturn self.out(y.mean(1))",
    ),
    "frames": (
        "4, 8, 8",
        "y = self.out(x).softmax(-2) + torch.fft.fft2(x, dim=(-1, -2)).real[..., :3]\n"
        "d = y.unfold(1, 2, 1).std(-1) + y[:, 1:].diff(dim=-2, append=y[:, 1:, -1:])[:, :3]\nreturn d.mean((1, 2))",
    ),
    "patches": (
        "3, 8, 8",
        "p = F.unfold(x, 2, stride=2)\ny = F.fold(p, (8, 8), 2, stride=2) + F.local_response_norm(x, 2)\n"
        "g = F.affine_grid(torch.eye(2, 3).expand(len(x), 2, 3), x.size())\n"
        "return self.out(F.grid_sample(y, g).mean((1, 2)))",
    ),
    "rotations": ("3, 8", "u, s, v = torch.svd(self.out(x).view(-1, 3, 3))\nreturn torch.bmm(u, v.mT).mean(1)"),
    "time first": (
        "5, 8",
        "y = x.transpose(0, 1)\ny = F.dropout(F.silu(F.layer_norm(y, (8,))), 0.1)\nreturn self.out(y.mean(0))",
    ),
}


def is_left(folder: Path, loss: str = PLAIN_LOSS, model: str = "return self.out(x)", shape: str = "8") -> bool:
    """Return whether a script is converted with nothing gathered, listed, or made a sum of all processes."""
    script = SCRIPT.replace("MODEL", model.replace("\n", "\n        ")).replace("SHAPE", shape)
    result = conversion(folder, script.replace("LOSS", loss.replace("\n", "\n    ")))
    text = next(file.text for file in result.files if file.path.name == "train.py")
    listed = [found for found in result.findings if found.code in ("RF302", "RF303", "RF309")]
    return not result.refusals and not listed and "rd.loss." not in text


@pytest.mark.parametrize("form", LOSSES)
def test_a_loss_of_each_row_is_left(tmp_path: Path, form: str) -> None:
    assert is_left(tmp_path, loss=LOSSES[form])


@pytest.mark.parametrize("form", MODELS)
def test_a_model_of_each_row_is_left(tmp_path: Path, form: str) -> None:
    shape, model = MODELS[form]
    assert is_left(tmp_path, model=model, shape=shape)

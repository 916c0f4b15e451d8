"""Losses that couple samples otherwise than by sums and means: the rows are gathered where all of it is followed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

SCRIPT = """\
import functools
import itertools
import operator
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Correlations(nn.Module):
    def forward(self, s, t):
        return F.mse_loss(torch.cov(s.t()), torch.cov(t.t()))


class Distances(nn.Module):
    def forward(self, s, t):
        return F.mse_loss(s @ s.t(), t @ t.t())


def aligned(s, t):
    return F.cross_entropy(F.normalize(s) @ F.normalize(t).t(), torch.arange(len(s)))


class Moved(nn.Module):
    def forward(self, s, t):
        chosen = s[torch.randperm(len(s))]
        return F.mse_loss(chosen @ s.t(), t @ t.t())


def apart(a, b):
    return torch.exp(-(a - b).pow(2).sum(-1))


torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
loader = DataLoader(TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,))), batch_size=8)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
for x, y in loader:
    out = model(x)
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
GATHERED = {
    "the hardest": 'each = F.cross_entropy(out, y, reduction="none")\nloss = each.topk(4)[0].mean()',
    "softmax over the samples": (
        'each = F.cross_entropy(out, y, reduction="none")\nloss = (each.detach().softmax(0) * each).sum()'
    ),
    "the scale of a batch": "low, high = out.min(), out.max()\nloss = F.mse_loss((out - low) / (high - low), x[:, :3])",
    "in another precision": (
        "pairs = (out @ model(x + 0.1).t()).float() * out.mean(1, keepdim=True)\n"
        "loss = F.cross_entropy(pairs, torch.arange(len(out)))"
    ),
    "values of the batch": "loss = F.cross_entropy(out @ x[:, :3].t(), torch.arange(len(out)))",
    "covariances": "loss = Correlations()(out, x[:, :3])",
    "arguments of a pair": "pair = out, x[:, :3]\nloss = aligned(*pair)",
    "correlation": "p, t = out[:, 0], x[:, 0]\nloss = 1 - F.cosine_similarity(p - p.mean(), t - t.mean(), dim=0)",
    "pairs of classes": (
        "best, others = out[y == 1, 0], out[y != 1, 0]\n"
        "loss = F.softplus(others.unsqueeze(0) - best.unsqueeze(1)).mean()"
    ),
    "labels side by side": (
        "d = torch.cdist(out, out)\nsame = y.unsqueeze(0) == y.unsqueeze(1)\n"
        "loss = F.relu((d * same).max(1)[0] - (d + 1e6 * same).min(1)[0] + 0.3).mean()"
    ),
    "two views for a function": (
        "n, k = out.shape\nleft, right = out.view(n, 1, k), out.view(1, n, k)\n"
        "loss = (apart(left, right) * (y.view(n, 1) == y.view(1, n))).mean()"
    ),
    "noise for each sample": (
        "noise = 0.1 * torch.randn_like(x) + torch.Tensor(np.random.normal(0, 1, (x.shape[0], 6)))\n"
        "made = F.normalize(model(x + noise * 0))\nloss = (made @ made.t()).square().mean()"
    ),
    "spread and covariance": (
        "z = out - out.mean(0)\nspread = F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean()\n"
        "c = z.T @ z / (len(z) - 1)\nloss = spread + (c.pow(2).sum() - c.diagonal().pow(2).sum()) / 3"
    ),
    "in an order": "rows = out[x[:, 0].argsort()]\nloss = (rows[1:] - rows[:-1]).pow(2).mean()",
    "places in an order": "places = y.argsort().argsort()\nloss = (out.mean(1) * places).mean()",
    "singular values": "loss = torch.linalg.svdvals(out).sum() - torch.norm(out.softmax(1), 'nuc') / len(out)",
    "an integral over the samples": (
        "score, order = out[:, 0].sort()\nloss = torch.trapezoid(out[:, 1].pow(2)[order], score)\n"
        "loss = loss + torch.cumulative_trapezoid(out, dim=0).mean()"
    ),
    "a product of matrices in a row": "loss = torch.bmm(out.T[None], out[None]).pow(2).mean()",
    "windows over the samples": (
        "loss = F.avg_pool1d(out.T[None], 2).exp().mean() + F.adaptive_max_pool1d(out.t()[None], 1).exp().mean()\n"
        "loss = loss + F.conv1d(out.t()[None], torch.ones(1, 3, 3)).exp().mean() + out.unfold(0, 2, 1).std(-1).mean()"
    ),
    "columns that are mapped": (
        "loss = torch.vmap(lambda column: column.std(), in_dims=1)(out).mean()\n"
        "loss = loss + torch.stack([column.var() for column in out.t()]).exp().mean()"
    ),
    "one row after the other": (
        "loss = functools.reduce(operator.add, out).exp().mean() + functools.reduce(torch.maximum, out).exp().mean()\n"
        "loss = loss + torch.stack(list(itertools.accumulate(out))).exp().mean() + max(out[:, 0])"
    ),
    "axes that are moved": (
        "loss = out.movedim(0, 1).std(1).mean() + out.moveaxis(0, -1).var(-1).mean()\n"
        "loss = loss + out.swapdims(0, 1).std(1).mean()\n"
        "loss = loss + out.T.std(-1).mean() + out.std(-2).mean() + (out.softmax(dim=-2) * out).sum()"
    ),
    "spectra": (
        "loss = torch.fft.fftn(out).abs().mean() + torch.fft.fft2(out).abs().mean()\n"
        "loss = loss + torch.fft.rfft(out[:, 0]).abs().mean() + torch.gradient(out, dim=0)[0].abs().mean()"
    ),
    "rows by an index": (
        "loss = (out.narrow(0, 0, 2) - out.select(0, 3)).pow(2).mean()\n"
        "loss = loss + out.index_select(0, torch.tensor([0, 5])).pow(2).mean() + torch.take(out, y).mean()"
    ),
    "products without an arrow": "loss = torch.einsum('ic,jc', out, out).exp().mean()",
    "a place among the others": (
        "edges = out[:, 0].sort()[0].detach()\nplaces = torch.searchsorted(edges, out[:, 0].detach().contiguous())\n"
        "loss = (places * out[:, 1]).mean()"
    ),
    "a function that is not known": (
        "loss = torch.block_diag(*out).sum(1).exp().mean() + torch.renorm(out, 2, 1, 1.0).exp().mean()"
    ),
    "a norm of everything": (
        "loss = F.layer_norm(out, out.shape).exp().mean() + F.local_response_norm(out[None], 2).exp().mean()"
    ),
    "weights without their history": "loss = (out @ out.t()).exp().mean() + (out.detach().norm(dim=1) * y).mean()",
    "another type": "loss = (out @ out.t()).exp().mean() + (out.double().float().norm(dim=1) * y).mean()",
    "pairs in a list": (
        "near = out @ out.t()\nloss = 0\nfor rows, classes in [(near, y), (near * 2, y)]:\n"
        "    loss = loss + F.cross_entropy(rows[:, :3], classes)"
    ),
    "pairs put into a list": (
        "near, kept, loss = out @ out.t(), [], 0\nkept.append((near, y))\nfor rows, classes in kept:\n"
        "    loss = loss + ((classes[:, None] == classes[None]) * rows).mean()"
    ),
    "labels on the scale of the batch": (
        "y = (y - y.double().mean()) / y.double().std()\nloss = ((out @ out.t()).mean(1) - y).pow(2).mean()"
    ),
}


def text_of(folder: Path, lines: str) -> str:
    result = conversion(folder, SCRIPT.replace("LINES", lines.replace("\n", "\n    ")))
    assert not result.refusals
    assert not [found for found in result.findings if not found.edits and found.code in ("RF302", "RF309")]
    return next(file.text for file in result.files if file.path.name == "train.py")


@pytest.mark.parametrize("form", GATHERED)
def test_rows_are_gathered_and_nothing_is_left_to_the_user(tmp_path: Path, form: str) -> None:
    assert "rd.loss.batch_rows(" in text_of(tmp_path, GATHERED[form])


def test_what_comes_from_gathered_rows_is_not_gathered_again(tmp_path: Path) -> None:
    assert "apart(left, right)" in text_of(tmp_path, GATHERED["two views for a function"])


def test_the_training_is_that_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    lines = [line for form in GATHERED.values() for line in [*form.split("\n"), "total = total + loss"]]
    script = SCRIPT.replace("LINES", "\n    ".join(["total = 0.0", *lines, "loss = total"]))
    shown = 'print("shown", *(p.abs().sum().item() for p in model.parameters()))\n'
    trains_as_one(tmp_path, script + shown, launcher)


def test_what_is_followed_is_gathered_also_next_to_what_is_not(tmp_path: Path) -> None:
    lines = (
        'name = input()\nif name == "distances":\n    loss = Distances()(out, x[:, :3])\n'
        "else:\n    loss = Moved()(out, x[:, :3])"
    )
    result = conversion(tmp_path, SCRIPT.replace("LINES", lines.replace("\n", "\n    ")))
    texts = "".join(file.text for file in result.files if file.path.name == "train.py")
    messages = " ".join(str(finding.refusal) for finding in result.refusals)
    assert "random" in messages + texts
    assert "s @ s.t()" not in messages


@pytest.mark.parametrize("shape", ["out.view(4, 2, -1)", "out.reshape(4, 2, 3)"])
def test_rows_in_a_shape_of_a_fixed_batch_are_not_gathered(tmp_path: Path, shape: str) -> None:
    lines = f"z = {shape}.mean(1)\nloss = torch.logsumexp(z @ z.t(), 1).mean()"
    result = conversion(tmp_path, SCRIPT.replace("LINES", lines.replace("\n", "\n    ")))
    assert "number of rows of one rank's batch" in str([finding.refusal for finding in result.refusals])


BY_NAME = """\
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pairs(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return {"a": torch.ones(4) * index, "b": torch.ones(4), "path": str(index)}


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, a, b):
        return self.left(a) @ self.right(b).t()


def settings():
    order = torch.randperm(32)
    return {"device": "cpu", "number": order.shape[0]}


loader = DataLoader(Pairs(), batch_size=8)
config = {"device": "cpu"}
config["order"] = torch.randperm(32)
config["number"] = settings()["number"]
model = Towers()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in loader:
    batch = {k: v.to(config["device"]) for k, v in batch.items() if k != "path"}
    similarity = model(**batch)
    loss = F.cross_entropy(similarity, torch.arange(similarity.size(0)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_rows_that_a_model_is_given_by_name_are_gathered(tmp_path: Path) -> None:
    result = conversion(tmp_path, BY_NAME)
    assert not result.refusals
    text = "".join(file.text for file in result.files)
    assert text.count("rd.loss.batch_rows(self.") == 2


def test_an_order_that_is_drawn_before_the_training_is_that_of_all_ranks(tmp_path: Path) -> None:
    result = conversion(tmp_path, BY_NAME.replace('(config["device"])', '(config["device"]) * config["number"]'))
    assert not result.refusals

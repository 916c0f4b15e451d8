"""Losses that couple the samples of a batch, in the spellings of real projects: Dice, IoU, Tversky, roots of means."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.training import read_project

HEAD = """\
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.rand(16, 2, 4, 4).double(), (torch.rand(16, 2, 4, 4) > 0.6).double())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(2, 2, 3, padding=1).double()

    def forward(self, x):
        return torch.sigmoid(self.layer(x / x.sum()))


"""
FLAT = """\
def LOSS(input, target, smooth=1.):
    iflat = input.contiguous().view(-1)
    tflat = target.view(-1)
    both = (iflat * tflat).sum()
    return 1 - ((2. * both + smooth) / (iflat.sum() + tflat.sum() + smooth))
"""
MODULE = """\
class LOSSLoss(nn.Module):
    def __init__(self, weight=0.5, gamma=0.75):
        super(LOSSLoss, self).__init__()
        self.weight, self.gamma, self.bce = weight, gamma, nn.BCELoss()

    def tversky(self, inputs, targets, smooth=1):
        inputs, targets = torch.flatten(inputs), torch.flatten(targets)
        TP = torch.sum(inputs * targets)
        FP = ((1 - targets) * inputs).sum()
        FN = (targets * (1 - inputs)).sum()
        return (TP + smooth) / (TP + 0.7 * FP + 0.3 * FN + smooth)

    def forward(self, inputs, targets):
        focal = torch.pow(1 - self.tversky(inputs, targets), self.gamma)
        return self.weight * self.bce(inputs, targets) + focal


LOSS = LOSSLoss()
"""
AXES = """\
def LOSS(pred, target, eps=1e-7):
    dims = (0,) + tuple(range(2, target.ndimension()))
    intersection = torch.sum(pred * target, dims)
    cardinality = torch.sum(pred + target, dims)
    iou = (intersection / (cardinality - intersection + eps)).mean()
    return 1 - iou
"""
BY_CLASS = """\
def flatten(tensor):
    axis_order = (1, 0) + tuple(range(2, tensor.dim()))
    return tensor.permute(axis_order).contiguous().view(tensor.size(1), -1)


class LOSSLoss(nn.Module):
    def one(self, score, target):
        intersect = torch.sum(score * target)
        y_sum = torch.sum(target * target)
        z_sum = torch.sum(score * score)
        return 1 - (2 * intersect + 1e-5) / (z_sum + y_sum + 1e-5)

    def forward(self, inputs, target):
        loss = 0.0
        for i in range(inputs.shape[1]):
            loss += self.one(inputs[:, i], target[:, i])
        p, t = flatten(inputs), flatten(target)
        dice = 2 * (p * t).sum(-1) / (p.pow(2) + t.pow(2)).sum(-1).clamp(min=1e-6)
        return loss / inputs.shape[1] + (1.0 - dice).mean()


LOSS = LOSSLoss()
"""
ROOT = """\
def LOSS(out, target):
    mse = F.mse_loss(out, target)
    loss = torch.sqrt(mse) + (((out - target) ** 2).sum() / len(out)) ** 0.5
    return loss + torch.log(torch.cosh(out.mean()))
"""
COUNTED = """\
def LOSS(out, target):
    precision = (out * target).sum() / (out.sum() + 1e-6)
    recall = (out * target).sum() / (target.sum() + 1e-6)
    return 1 - 2 * precision * recall / (precision + recall + 1e-6)
"""
BY_SAMPLE = """\
def LOSS(pred, target, smooth=1.):
    num = pred.size(0)
    p = pred.view(num, -1)
    t = target.view(num, -1)
    both = (p * t).sum(1)
    dice = (2. * both + smooth) / (p.sum(1) + t.sum(1) + smooth)
    whole = (pred * target).sum(dim=(1, 2, 3)) / pred.sum(dim=[1, 2, 3]).clamp_min(1)
    return 1 - dice.sum() / num + (1 - whole).mean() + F.l1_loss(pred, target)
"""
IN_LOOP = """\
def one(p, t):
    return 1 - (2 * (p * t).sum() + 1) / (p.sum() + t.sum() + 1)


def LOSS(pred, target):
    loss = 0
    for i in range(pred.shape[0]):
        loss += one(pred[i], target[i])
    return loss / pred.shape[0]
"""
CENTERED = """\
def LOSS(out, target):
    center = out.mean(0, keepdim=True)
    return ((out - center) ** 2).mean() + ((out - target.mean()) * target).mean()
"""
PRODUCTS = """\
def LOSS(out, target):
    rows = out.flatten(1)
    both = rows.t() @ target.flatten(1) / len(out)
    return (both**2).mean() + torch.mm(rows.T, rows).pow(2).mean() * 1e-4
"""
MOVING = """\
class LOSSCenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 2, 4, 4).double())
        self.register_buffer("total", torch.zeros(2).double())

    def forward(self, out, target):
        loss = ((out - self.center) ** 2 * target).mean() + (out.mean((2, 3)) * self.total.clone()).mean()
        self.update(out)
        return loss

    @torch.no_grad()
    def update(self, out):
        self.center = self.center * 0.9 + 0.1 * out.mean(0, keepdim=True)
        self.total.mul_(0.5).add_(out.mean((2, 3)).sum(0), alpha=0.5)


LOSS = LOSSCenter()
"""
SINKHORN = """\
@torch.no_grad()
def assigned(scores):
    Q = torch.exp(scores).t()
    Q /= torch.sum(Q)
    for _ in range(2):
        Q /= torch.sum(Q, dim=1, keepdim=True)
        Q /= torch.sum(Q, dim=0, keepdim=True)
    return Q.t()


def LOSS(out, target):
    rows = out.flatten(1)
    return -(assigned(rows.detach()) * torch.log_softmax(rows, 1)).sum(1).mean()
"""
DISTILLED = """\
class LOSSCenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(1, 32).double())

    def forward(self, out, target):
        given = torch.cat([target, target.flip(3)]).flatten(1)
        teacher = F.softmax((given - self.center) / 0.5, dim=-1).detach().chunk(2)
        student = (torch.cat([out, out.flip(2)]).flatten(1) / 0.1).chunk(2)
        loss, terms = 0, 0
        for i, q in enumerate(teacher):
            for p in student[:i] + student[i + 1 :]:
                loss += torch.sum(-q * F.log_softmax(p, dim=-1), dim=-1).mean()
                terms += 1
        self.update(given)
        return loss / terms

    @torch.no_grad()
    def update(self, given):
        center = torch.sum(given, dim=0, keepdim=True) / len(given)
        self.center = self.center * 0.9 + center * 0.1


LOSS = LOSSCenter()
"""
IN_PLACE = """\
def LOSS(out, target):
    rows = out.flatten(1)
    found = rows.T @ target.flatten(1)
    found.div_(args.batch_size)
    own = rows.T @ rows
    own /= len(rows)
    return torch.diagonal(found).add_(-1).pow_(2).sum() + own.pow(2).mean()
"""
LOSSES = {
    "flat": FLAT, "module": MODULE, "axes": AXES, "by_class": BY_CLASS, "root": ROOT, "counted": COUNTED,
    "by_sample": BY_SAMPLE, "in_loop": IN_LOOP, "centered": CENTERED, "products": PRODUCTS, "moving": MOVING,
    "sinkhorn": SINKHORN, "distilled": DISTILLED, "in_place": IN_PLACE,
}  # fmt: skip
BLOCK = """\


def train_NAME():
    torch.manual_seed(0)
    loader = DataLoader(data, args.batch_size, drop_last=False)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    for i, (x, y) in enumerate(loader):
        out = model(x)
        loss = NAME(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("NAME", i, loss.item(), *model.layer.weight.detach().flatten().tolist())
    with torch.no_grad():
        print("NAME test", NAME(model(x[:1]), y[:1]).item())
"""


def text_of(names: list[str]) -> str:
    head = HEAD.replace("x / x.sum()", "x")
    losses = "\n\n".join(LOSSES[name].replace("LOSS", name) for name in names)
    trains = "".join(BLOCK.replace("NAME", name) for name in names)
    return head + losses + trains + "\n\n" + "".join(f"train_{name}()\n" for name in names)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    original, changed = tmp_path_factory.mktemp("original"), tmp_path_factory.mktemp("changed")
    (original / "train.py").write_text(text_of(list(LOSSES)))
    shutil.copy(original / "train.py", changed)
    (file,) = plan_conversion(read_project(changed / "train.py")).files
    file.path.write_text(file.text)
    add_runtime(changed)
    return original, changed


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_loss_is_that_of_the_whole_batch(world_size: int, folders: tuple[Path, Path], launcher: Launcher) -> None:
    original, changed = folders
    runs = [
        launcher.run(original, "train.py", []),
        launcher.run(changed, "train.py", [], world_size=world_size, RETROFIT_BATCH="global"),
    ]
    for run in runs:
        assert set(run["statuses"]) == {0}, run["outputs"]
    alone, together = (
        [line.split() for line in run["outputs"][0].splitlines() if line.split()[0] in LOSSES] for run in runs
    )
    assert len(alone) == len(together) == len(LOSSES) * 4
    for expected, found in zip(alone, together):
        assert found[:2] == expected[:2]
        assert list(map(float, found[2:])) == pytest.approx(list(map(float, expected[2:])), rel=1e-8, abs=1e-12), found[
            0
        ]


def test_sums_over_one_sample_are_unchanged(tmp_path: Path) -> None:
    found = conversion(tmp_path, text_of(["by_sample", "in_loop"])).findings
    assert [str(f) for f in found if f.code in ("RF302", "RF309")] == []


SCRIPT = """\
loader = DataLoader(data, args.batch_size)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=args.lr)
for i, (x, y) in enumerate(loader):
    out = model(x)
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(lines: str, before: str = "") -> str:
    return HEAD + before + SCRIPT.replace("LINES", lines.replace("\n", "\n    "))


@pytest.mark.parametrize(
    ("lines", "before", "words"),
    [
        ("loss = 0\nif y.max() > 0:\n    loss = flat(out, y)", FLAT.replace("LOSS", "flat"), "may not all come to it"),
        (
            "loss = 0\nif torch.rand(len(x)).mean() > 0.5:\n    loss = flat(out, y)",
            FLAT.replace("LOSS", "flat"),
            "may not all come",
        ),
        (
            "loss = one(out, y)\nfor j in range(len(x)):\n    loss = loss + one(out[j], y[j])",
            IN_LOOP.partition("def LOSS")[0],
            "for one sample after the other",
        ),
    ],
)
def test_a_loss_that_cannot_be_made_global_is_listed(lines: str, before: str, words: str, tmp_path: Path) -> None:
    found = [f for f in conversion(tmp_path, script(lines, before)).findings if f.code == "RF309"]
    found = [f for f in found if "it is in the model" not in f.message]  # x / x.sum() of the model above
    assert found and not any(f.edits for f in found) and all(words in f.message for f in found)


@pytest.mark.parametrize(
    "lines",
    [
        "errors, order = torch.sort((out - y).abs().view(-1), 0, descending=True)\n"
        "loss = (errors * y.view(-1)[order].cumsum(0)).sum()",
        "loss = torch.norm(out - y)",
        "loss = F.relu(1 - out.std(dim=0)).mean()",
    ],
)
def test_a_loss_that_is_not_a_function_of_sums_gets_the_rows_of_all_ranks(lines: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(lines))
    left = [f for f in result.findings if f.code == "RF309" and "it is in the model" not in f.message]
    assert not left and "rd.loss.batch_rows(" in result.files[0].text


SCALED = """\
import torch
from elsewhere import start
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, weight):
        self.weight = weight

    def run(self, rank, world_size, settings):
        loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), 8, shuffle=True)
        model = nn.Linear(4, 1)
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        self.train(loader, model, optimizer, world_size, settings)

    def train(self, loader, model, optimizer, factor, settings):
        for x, y in loader:
            out = model(x)
            optimizer.zero_grad()
            LOSS
            loss.backward()
            optimizer.step()


start(Trainer)
"""


@pytest.mark.parametrize("how", ["torch.sum", "torch.mean"])
@pytest.mark.parametrize(
    "loss",
    [
        "loss = HOW((out - y) ** 2) * factor",
        "loss = factor * HOW((out - y) ** 2)",
        "loss = HOW((out - y) ** 2) * settings.weight",
        "loss = HOW((out - y) ** 2) * settings['weight']",
        "loss = HOW((out - y) ** 2) * self.weight",
        "loss = HOW((out - y) ** 2); loss *= factor * settings.weight",
        "loss = HOW((out - y) ** 2) * (1 - 3 / (x.size()[-1] * x.shape[1]))",
        "size = x.size(); width = min(size[1], 3) // 2; loss = HOW((out - y) ** 2) * (width / size[1])",
        "weights = torch.ones(3); weights.add(out.sum()); loss = HOW((out - y) ** 2) * weights.sum()",
    ],
)
def test_a_factor_known_before_the_batch_couples_no_samples(loss: str, how: str, tmp_path: Path) -> None:
    text = SCALED.replace("LOSS", loss).replace("HOW", how)
    assert not [f for f in conversion(tmp_path, text).findings if f.code == "RF309"]


def test_a_criterion_is_given_gathered_rows_where_its_miner_is(tmp_path: Path) -> None:
    text = "from pytorch_metric_learning import losses as pml, miners\n" + script(
        "loss = criterion(out, y, miner(out, y))",
        "criterion = pml.TripletMarginLoss()\nminer = miners.MultiSimilarityMiner()\n",
    )
    assert not [f for f in conversion(tmp_path, text).findings if f.code == "RF309"]
    y = "rd.loss.batch_rows(y)"
    assert f"criterion(out, {y}, miner(out, {y}))" in "\n".join(converted(tmp_path, text)).replace(
        "rd.loss.batch_rows(out)", "out"
    )


LOSSES_OF_PAIRS = """\
class Mined(nn.Module):
    def __init__(self):
        super().__init__()
        self.miner, self.pairs = miners.MultiSimilarityMiner(), pml.MultiSimilarityLoss()

    def forward(self, rows, labels):
        return self.pairs(rows, labels, self.miner(rows, labels))


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.pairs = pml.ContrastiveLoss()

    def forward(self, rows, labels):
        return self.pairs(rows, labels)


compared = pml.NPairsLoss()


def plain(rows, labels):
    return compared(rows, labels)


"""


@pytest.mark.parametrize("other", ["Plain()", "plain", "pml.ContrastiveLoss()", "pml.NTXentLoss(0.1)"])
def test_rows_that_are_gathered_at_the_call_are_not_gathered_by_the_criterion(tmp_path: Path, other: str) -> None:
    text = "from pytorch_metric_learning import losses as pml, miners\n" + script(
        "loss = criterion(out, y)", f"{LOSSES_OF_PAIRS}criterion = Mined() if len(x) > 9 else {other}\n"
    )
    lines = "\n".join(converted(tmp_path, text))
    assert "loss = criterion(rd.loss.batch_rows(out), rd.loss.batch_rows(y))" in lines
    assert "whole_batch_loss" not in lines


OPTIONAL_AXES = """\
def score(input, target, reduce_batch_first=False, epsilon=1e-6):
    axes = (-1, -2) if input.dim() == 2 or not reduce_batch_first else (-1, -2, -3)
    inter = 2 * (input * target).sum(dim=axes)
    sets = input.sum(dim=axes) + target.sum(dim=axes)
    sets = torch.where(sets == 0, inter, sets)
    return ((inter + epsilon) / (sets + epsilon)).mean()


def scores(input, target, reduce_batch_first=False):
    return score(input.flatten(0, 1), target.flatten(0, 1), reduce_batch_first)


"""
FOCAL = """\
class Focal(nn.Module):
    def __init__(self, gamma=0, size_average=True):
        super().__init__()
        self.gamma, self.size_average = gamma, size_average

    def forward(self, inputs, targets):
        focal = (1 - inputs) ** 2 * F.binary_cross_entropy(inputs, targets, reduction="none")
        if self.size_average:
            return focal.mean()
        else:
            return focal.sum()


criterion = Focal(size_average=OPTION)
"""


def test_axes_that_may_be_the_batch_axis_are_listed(tmp_path: Path) -> None:
    lines = "loss = F.binary_cross_entropy(out, y)\nloss += 1 - scores(out, y, reduce_batch_first=True)"
    result = conversion(tmp_path, script(lines, OPTIONAL_AXES))
    assert "RF309" in {f.code for f in result.findings if not f.edits}
    assert "sum_loss" not in result.files[0].text and "rd.scaled_lr(args.lr)" in result.files[0].text
    whole = "both = torch.where(y.sum() == 0, (out * y).sum(), out.sum())\nloss = 1 - (out * y).sum() / both"
    assert "sum_loss" not in conversion(tmp_path, script(whole)).files[0].text


@pytest.mark.parametrize("option", [True, False])
def test_an_option_decides_between_sum_and_mean(option: bool, tmp_path: Path) -> None:
    found = converted(tmp_path, script("loss = criterion(out, y)", FOCAL.replace("OPTION", str(option))))
    assert ("loss.backward()" in found, "rd.loss.sum_loss(loss).backward()" in found) == (option, not option)
    assert sum("sum_loss" in line for line in found) == (not option)


GRAPH = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(5, 5), nn.Linear(5, 1)

    def graph(self, x):
        h, _ = self.rnn(x.permute(2, 0, 1))
        h = h.permute(1, 0, 2)
        weights = F.softmax(h @ h.transpose(1, 2), dim=2)
        return MEAN

    def forward(self, x):
        return self.head(torch.matmul(self.graph(x), x.permute(0, 2, 1))[..., 0:5]).squeeze(-1)


loader = DataLoader(TensorDataset(torch.randn(8, 5, 3), torch.randn(8, 3)), 4, shuffle=True)
model = Graph()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    nn.MSELoss()(model(x), y).backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("mean", "is_listed"),
    [
        ("weights.mean(0)", True),
        ("torch.mean(weights, dim=0)", True),
        ("weights.sum(0) / len(x)", True),
        ("weights.mean(1, keepdim=True)", False),
        ("weights", False),
    ],
)
def test_a_mean_over_the_batch_in_a_model_is_listed(mean: str, is_listed: bool, tmp_path: Path) -> None:
    result = conversion(tmp_path, GRAPH.replace("MEAN", mean))
    found = [f for f in result.findings if f.code == "RF309"]
    assert not result.refusals
    assert bool(found) is is_listed
    assert all("it is in the model" in f.message and not f.edits for f in found)


POOLED = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.nodes, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def pooled(self, h):
        return torch.sigmoid(torch.sum(self.nodes(h), 0))

    def forward(self, graphs, ys):
        hs = torch.stack([self.pooled(h) for h in graphs])
        return (self.head(hs).squeeze(1) - ys).pow(2).mean()


def collate(samples):
    return [sample[0] for sample in samples], torch.stack([sample[1] for sample in samples])


loader = DataLoader(TensorDataset(torch.randn(8, 5, 3), torch.randn(8)), 4, shuffle=True, collate_fn=collate)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for graphs, ys in loader:
    optimizer.zero_grad()
    model(graphs, ys).backward()
    optimizer.step()
"""


@pytest.mark.parametrize("form", ["h in graphs", "h, y in zip(graphs, ys)", "i, h in enumerate(graphs)"])
def test_a_sum_over_what_may_be_one_sample_is_not_made_one_of_all_processes(form: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, POOLED.replace("h in graphs", form))
    assert not result.refusals
    assert not any("batch_sum" in file.text for file in result.files if file.path.name == "train.py")


WRAPPED = """\
def flatten(tensor):
    order = (1, 0) + tuple(range(2, tensor.dim()))
    return tensor.permute(order).contiguous().view(tensor.size(1), -1)


class Generalised(nn.Module):
    def forward(self, input, target):
        input = flatten(input)
        target = flatten(target)
        if input.size(0) == 1:
            input = torch.cat((input, 1 - input), dim=0)
            target = torch.cat((target, 1 - target), dim=0)
        weights = target.sum(-1)
        weights = 1 / (weights * weights).clamp(min=1e-6)
        both = (input * target).sum(-1)
        both = both * weights
        either = (input + target).sum(-1)
        either = (either * weights).clamp(min=1e-6)
        return 1 - 2 * (both.sum() / either.sum())


class Masked(nn.Module):
    def __init__(self, loss, ignored):
        super().__init__()
        self.loss, self.ignored = loss, ignored

    def forward(self, input, target):
        mask = target.clone().ne_(self.ignored)
        return self.loss(input * mask, target * mask)


model = nn.Conv2d(2, 2, 1).double()
loader = DataLoader(data, batch_size=args.batch_size)
criterion = Masked(Generalised(), 2)
optimizer = optim.SGD(model.parameters(), lr=args.lr)
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_nothing_is_said_of_a_quotient_of_sums_over_all_ranks(tmp_path: Path) -> None:
    result = conversion(tmp_path, HEAD + WRAPPED)
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert not result.refusals and text.count("rd.loss.batch_sum(") == 3
    assert not [f for f in (*result.findings, *result.listed) if "divided by each other" in f.message and not f.edits]

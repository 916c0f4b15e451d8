"""Whether a loss is a sum over the samples or a mean: gradients, learning rates and what is shown follow from it."""

from __future__ import annotations

import ast
import re
import shutil
from pathlib import Path

import pytest
import torch.nn.functional as F
from convert.conversion import add_runtime, conversion, converted
from torch import nn
from verify.projects.launch import Launcher

from retrofit.analysis.scopes import Scope
from retrofit.convert.plan import plan_conversion
from retrofit.convert.stages import show
from retrofit.training import Project, read_project
from retrofit.training.losses.reductions import kinds, reader
from retrofit.training.losses.reductions.reduction import backward_kind
from retrofit.training.torch_api.losses import CLASS_OF, LOSS_FUNCTIONS

HEAD = """\
import argparse
import math

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=6)
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--beta", type=float, default=0.5)
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.rand(16, 3).double(), torch.rand(16, 3).double())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 3).double(), math.sqrt(3)

    def forward(self, x):
        x = torch.sigmoid(self.layer(x / 255 * 100) / self.scale)
        return x / (1 + x.mean(1, keepdim=True)), x.pow(2).sum() * 0 + x


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3).double() for _ in range(3))

    def forward(self, x):
        scales = []
        for layer in self.layers:
            x = torch.tanh(layer(x))
            scales.append(x)
        return [scales]


def render(image):
    return image / image.amax(1, keepdim=True)


def elbo(out, x, mu):
    error = F.mse_loss(out, x, reduction="sum")
    penalty = -0.5 * torch.sum(1 + mu - mu.exp())
    return error + args.beta * penalty, error, penalty


pyramid = Pyramid()
loader = DataLoader(data, args.batch_size)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=args.lr)
"""
TRAIN = """\
for i, (x, y) in enumerate(loader):
    out, mu = model(x)
    optimizer.zero_grad()
    LINES
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def script(lines: str) -> str:
    return HEAD + TRAIN.replace("LINES", lines.replace("\n", "\n    "))


SUMS = [
    "loss = F.mse_loss(out, y, reduction='sum')",
    "loss = F.mse_loss(out / 255, render(y / 255), reduction='sum')",
    "loss = ((out - y) ** 2).sum() / math.sqrt(3)",
    "loss = (out - y).abs().mean(1).sum(0)",
    "loss = torch.sum(torch.sum((out - y).pow(2), dim=1))",
    "loss, error, penalty = elbo(out, y, mu)",
    "loss = nn.L1Loss(size_average=False)(out, y)\nloss *= args.beta",
    "loss = 0\nfor j in range(x.size(0)):\n    loss = loss + F.mse_loss(out[j], y[j])",
    "loss = torch.einsum('bc,bc->', out, y)",
    "loss = (1 - F.cosine_similarity(out, y)).sum() / 2",
    "loss = (F.mse_loss(out, y, reduction='none') * 2).view(-1).sum()",
    "loss = F.mse_loss(out, y) * len(x)",
    "n = x.size(0)\nloss = n * F.mse_loss(out, y)",
    "loss = F.mse_loss(out, y, size_average=None, reduce=None, reduction='sum').div_(2)",
    "loss = F.mse_loss(out, y, False)",
    "loss = nn.L1Loss(False)(out, y)",
    "loss = F.mse_loss(out, y, reduce=False).sum().neg_()",
    "loss = F.mse_loss(out, y)\nloss *= len(x)",
    "loss = (F.mse_loss(out, y) + 0.1 * model.layer.weight.square().sum()) * len(x)",
    "loss = F.mse_loss(out, y).mul(x.shape[0] / 4)",
    "size = x.size()\nloss = F.mse_loss(out, y) * size[0]",
    "loss = F.mse_loss(out, y) * x.numel()",
    "outs = [*out]\nloss = 0\nfor j in range(len(outs)):\n    loss = loss + F.mse_loss(outs[j], y[j])",
    "outs = []\nouts.extend(out)\nloss = 0\nfor j in range(len(outs)):\n    loss = loss + F.mse_loss(outs[j], y[j])",
    "outs = []\nouts += [o * 2 for o in out]\nloss = 0\nfor j in range(len(outs)):\n"
    "    loss = loss + F.mse_loss(outs[j], y[j])",
    "loss = 0\nouts = [part for part in out]\nfor j in range(len(outs)):\n    loss = loss + F.mse_loss(outs[j], y[j])",
    "loss = 0\nfor part, label in zip(out, y):\n    loss += F.mse_loss(part, label)",
    "loss = 0\nfor k, part in enumerate(out):\n    loss += F.mse_loss(part, y[k])",
    "deep = pyramid(x)[0][-1]\nloss = 0\nfor k in range(len(deep)):\n    loss += F.mse_loss(deep[k], y[k])",
    "loss = torch.stack([F.mse_loss(out[k], y[k]) for k in range(len(y))]).sum()",
    "outs = []\nfor part in x:\n    outs.append(model(part[None])[0][0])\nloss = 0\nfor j in range(len(outs)):\n"
    "    loss = loss + F.mse_loss(outs[j], y[j])",
]
# Lists of what several layers give, and figures of the form of a batch.
LISTS = [
    "outs = model(x)\nloss = 0\nfor m in range(len(outs)):\n    loss = loss + F.mse_loss(outs[m], y)",
    "outs = list(model(x))\nloss = 0.\nfor m in range(0, len(outs)):\n    loss += F.mse_loss(outs[m], y)",
    "outs = [out, mu]\nn = len(outs)\nloss = 0\nfor m in range(n):\n    loss = loss + F.mse_loss(outs[m], y)",
    "outs = []\nfor part in (out, mu):\n    outs.append(part)\nloss = 0\nfor m in range(len(outs)):\n"
    "    loss = loss + F.mse_loss(outs[m], y)",
    "outs = [f(out) for f in (torch.exp, torch.sin)]\nloss = 0\nfor m in range(len(outs)):\n"
    "    loss = loss + F.mse_loss(outs[m], y)",
    "outs = {'a': out, 'b': mu}\nloss = 0\nfor m in range(len(outs)):\n    loss = loss + F.mse_loss(outs['ab'[m]], y)",
    "def over(outs):\n    loss = 0\n    for m in range(len(outs)):\n        loss = loss + F.mse_loss(outs[m], y)\n"
    "    return loss\nloss = over((out, mu))",
    "if i > 0:\n    outs = [out, mu]\nelse:\n    outs = [mu, out]\nouts = [outs[k] * 2 for k in range(len(outs))]\n"
    "loss = 0\nfor m in range(len(outs)):\n    loss = loss + F.mse_loss(outs[m], y)",
    "loss = F.mse_loss(out, y) * (1 - 2 / (x.size()[-1] * x.size()[-2]))",
    "size = x.size()\nloss = F.mse_loss(out, y) * (size[1] / x.stride()[0] + x.dim())",
    "(w,) = x.shape[1:]\nloss = F.mse_loss(out, y) * w",
    "loss = F.mse_loss(out, y) * x.shape[::-1][0]",
    "fake, real = pyramid(out), pyramid(x)\nloss = 0\nfor m in range(1):\n    for k in range(len(fake[m]) - 1):\n"
    "        loss = loss + F.l1_loss(fake[m][k], real[m][k].detach())",
    "(fake,) = pyramid(out)\nloss = F.mse_loss(out, y)\nfor k in range(1, len(fake)):\n"
    "    loss += 0.4 * F.mse_loss(fake[k], y)",
    "with torch.no_grad():\n    real = pyramid(x)[0]\nloss = 0\n"
    "for k, (a, b) in enumerate(zip(pyramid(out)[0], real[:3])):\n    loss += F.mse_loss(a, b)",
    "fake = pyramid(out)[0]\nloss = sum(F.mse_loss(fake[k], y) for k in range(len(fake) - 1))",
    "loss = 0\nfor weight, part in zip([1.0, 0.4, 0.2], pyramid(out)[0]):\n    loss += weight * F.mse_loss(part, y)",
    "fake = pyramid(out)[0]\nlosses = [F.mse_loss(fake[k], y) for k in range(len(fake))]\n"
    "loss = torch.stack(losses).sum()",
    "loss = torch.stack([(part - y) ** 2 for part in pyramid(out)[0]]).sum(0).mean()",
    "loss = 0\nfor part in out.chunk(3, dim=1):\n    loss += F.mse_loss(part, y[:, :1])",
    "steps = out.unsqueeze(-1).permute(1, 0, 2)\nloss = 0\nfor k in range(len(steps)):\n"
    "    loss += F.mse_loss(steps[k], y[:, :1])",
]
MEANS = [
    "loss = F.mse_loss(out, y)",
    "loss = F.mse_loss(out, y) * out.shape[1]",
    "loss = F.mse_loss(out, y, reduction='sum') / x.size(0)",
    "n, c = x.shape\nloss = F.mse_loss(out, y, reduction='sum')\nloss /= n * c",
    "loss = elbo(out, y, mu)[0] / len(x)",
    "loss = ((out - y) ** 2).sum(1).mean()",
    "loss = F.mse_loss(out, y, reduction='sum')\nloss.div_(len(x))",
    "loss = F.mse_loss(out, y, None, None, 'mean').mul_(2)",
    "loss = F.mse_loss(out, y) + 0.1 * model.layer.weight.square().sum() + model.layer.bias.abs().sum()",
    "loss = torch.mean(torch.sum((out - y).abs(), dim=1), dim=0)",
    "loss = ((out - y) ** 2 / len(x)).sum()",
    "loss = ((out - y).abs().sum() * (1.0 / y.shape[0]))",
    "loss = 0\nfor j in range(len(x)):\n    loss = loss + F.mse_loss(out[j], y[j])\nloss = loss / len(x)",
    "loss = 0\nfor j in range(len(x)):\n    loss = loss + F.mse_loss(out[j], y[j]) / len(x)",
    "loss = 0\nfor j in range(len(x)):\n    loss += F.mse_loss(out[j], y[j]) / x.size(0)",
    "loss = 0\nfor part, label in zip(out, y):\n    loss += F.mse_loss(part, label, reduction='sum') * (1 / len(x))",
    "loss = sum(F.mse_loss(out[j], y[j]) / len(x) for j in range(len(x)))",
    "losses = [F.mse_loss(out[j], y[j]) / len(x) for j in range(len(x))]\nloss = sum(losses)",
    "losses = [F.mse_loss(part, y) for part in (out, mu)]\nloss = sum(losses)",
    "parts = {'a': F.mse_loss(out, y), 'b': F.l1_loss(out, y)}\nloss = sum(parts.values())",
    "loss = -(y * torch.log_softmax(out, 1)).sum(1).mean()",
    *LISTS,
]
# A loss of its own for each part of what the loader gives, with its own backward pass.
PARTS = [
    "for a, b in zip(x.split(2), y.split(2)):\n    loss = F.mse_loss(model(a)[0], b)\n    loss = loss / 3\n"
    "    loss.backward()",
    "for pair in zip(x, y):\n    loss = F.mse_loss(model(pair[0])[0], pair[1])\n    loss = args.beta * loss\n"
    "    loss.backward()",
    "for k in range(len(x)):\n    loss = F.mse_loss(model(x[k:])[0], y[k:])\n    loss = loss + F.l1_loss(mu, y)\n"
    "    loss.backward()",
    "for a in x:\n    loss = F.mse_loss(model(a)[0], a)\n    loss += F.l1_loss(model(a)[0], a)\n    loss.backward()",
    "parts = [(x, y), (x, y)]\nfor a, b in parts:\n    losses = [F.mse_loss(model(a)[0], b)]\n"
    "    losses.append(F.l1_loss(model(a)[0], b))\n    loss = sum(losses)\n    loss = loss / 2\n    loss.backward()",
]
# In a loop over the samples, changed without adding anything to it.
CHANGED = [
    "loss = F.mse_loss(out, y)\nfor k in range(len(x)):\n    loss = loss / 1.0",
    "loss = F.mse_loss(out, y)\nfor part in x:\n    loss = loss * (args.beta + 1)",
]


def test_the_reduction_is_read_from_the_loss_itself(tmp_path: Path) -> None:
    for number, lines in enumerate([*SUMS, *MEANS]):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = converted(folder, script(lines))
        is_sum = lines in SUMS
        assert ("rd.loss.sum_loss(loss).backward()" in found, "loss.backward()" in found) == (is_sum, not is_sum), lines
        assert ("optimizer = optim.SGD(model.parameters(), lr=args.lr)" in found) == is_sum, lines
        assert "batch_count" not in found, lines
        assert f"print(rd.reduce_{'total' if is_sum else 'loss'}(loss).item())" in found, lines


@pytest.mark.parametrize("lines", [*PARTS, *CHANGED])
def test_a_mean_that_is_scaled_in_a_loop_over_parts_of_the_batch_stays_a_mean(lines: str, tmp_path: Path) -> None:
    text = (
        script(lines)
        if lines in CHANGED
        else script(lines).replace("    loss.backward()\n    optimizer", "    optimizer")
    )
    found = converted(tmp_path, text)
    assert "loss.backward()" in found
    assert "optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(args.lr))" in found


@pytest.mark.parametrize(
    "loss",
    ["((out - y) ** 2).sum() / (len(out) - 1)", "(out.sum(0) / (n - 1)).pow(2).mean()", "((out - y) ** 2).sum() / k"],
)
def test_a_number_of_samples_with_a_correction_is_that_of_all_ranks(loss: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(f"n = x.size(0)\nk = n - 1\nloss = {loss}"))
    assert not [f for f in result.findings if f.code == "RF309"]
    assert "rd.loss.batch_rows(out)" in result.files[0].text and "rd.loss.batch_count(" in result.files[0].text


def test_a_weight_penalty_is_not_a_sum_over_the_batch(tmp_path: Path) -> None:
    penalty = "0.1 * model.module.layer.weight.square().sum()"
    text = script(f"loss = F.mse_loss(out, y) + {penalty}").replace("model = Net()", "model = nn.DataParallel(Net())")
    assert f"loss = F.mse_loss(out, y) + {penalty}" in converted(tmp_path, text)


def test_the_length_of_a_pair_does_not_follow_the_batch(tmp_path: Path) -> None:
    result = conversion(tmp_path, script("loss = F.mse_loss(out, y) * len(model(x))"))
    assert [f.code for f in result.findings if f.code == "RF309"] == []


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            "loss = F.mse_loss(out, y, reduction='sum') + F.l1_loss(out, y)",
            "loss = rd.loss.sum_loss(F.mse_loss(out, y, reduction='sum')) + F.l1_loss(out, y)",
        ),
        (
            "error = ((out - y) ** 2).sum()\nloss = error + sum(p.abs().sum() for p in model.parameters())",
            "loss = rd.loss.sum_loss(error) + sum(p.abs().sum() for p in model.parameters())",
        ),
        (
            "loss = F.l1_loss(out, y)\nif i:\n    loss += 0.5 * elbo(out, y, mu)[1]",
            "loss += rd.loss.sum_loss(0.5 * elbo(out, y, mu)[1])",
        ),
    ],
)
def test_a_sum_among_other_terms_is_scaled_alone(lines: str, expected: str, tmp_path: Path) -> None:
    found = converted(tmp_path, script(lines))
    assert expected in found and "loss.backward()" in found
    assert "print(rd.reduce_loss(loss).item())" in found  # the scaled sum and the mean alike
    assert "optimizer = optim.SGD(model.parameters(), lr=args.lr)" in found


@pytest.mark.parametrize(
    "term",
    [
        "torch.normal(out, 1.0).norm()",
        "out.new_tensor(out).norm()",
        "out.clone().uniform(out).norm()",
        "torch.tensor(out).norm()",
    ],
)
def test_the_norm_of_what_is_made_of_the_output_is_listed_or_gathered(term: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script(f"loss = F.mse_loss(out, y, reduction='sum') + {term}"))
    code = "RF303" if "tensor" in term else "RF309"
    assert {f.code for f in result.findings if f.code in ("RF303", "RF309")} == {code}, term


def test_a_sum_that_is_divided_by_the_batch_size_of_the_settings(tmp_path: Path) -> None:
    found = converted(tmp_path, script("loss = F.mse_loss(out, y, reduction='sum') / args.batch_size"))
    expected = "loss = F.mse_loss(out, y, reduction='sum') / rd.loss.rank_share(rd.loss.global_batch(args.batch_size))"
    assert expected in found and "loss.backward()" in found
    assert "optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(args.lr))" in found


def test_a_sum_divided_by_an_unknown_value_is_listed(tmp_path: Path) -> None:
    lines = "import unknown\nloss = F.mse_loss(out, y, reduction='sum') / unknown.size_of(out)"
    (finding,) = (f for f in conversion(tmp_path, script(lines)).findings if f.code == "RF307")
    assert not finding.edits and "divided by what is not known" in finding.message


DETECTOR = "detector = torchvision.models.detection.fasterrcnn_resnet50_fpn()\n"


@pytest.mark.parametrize(
    "loss",
    [
        "sum(loss for loss in losses.values())",
        "sum(losses.values())",
        "sum([losses[name] for name in losses])",
        "sum(value for name, value in losses.items() if 'loss' in name)",
        "sum(weights[name] * losses[name] for name in losses)",
        "torch.stack(list(losses.values())).sum()",
    ],
)
def test_losses_by_name_from_a_library_are_added_up_as_they_are(loss: str, tmp_path: Path) -> None:
    made = DETECTOR + "weights = dict(a=1.0)\nmodel = Net()"
    lines = script(f"losses = detector(x, y)\nloss = {loss}").replace("model = Net()", made)
    found = converted(tmp_path, "import torchvision\n" + lines)
    assert "loss.backward()" in found
    assert "optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(args.lr))" in found


def test_all_losses_of_torch_are_known() -> None:
    defined = {name for name in dir(F) if name.endswith("_loss")}
    assert defined <= LOSS_FUNCTIONS
    assert all(issubclass(getattr(nn, name), nn.Module) for name in CLASS_OF.values())


@pytest.mark.parametrize("name", ["multi_margin_loss", "multilabel_soft_margin_loss", "hinge_embedding_loss"])
def test_a_loss_of_torch_is_a_mean_among_losses_by_name(name: str, tmp_path: Path) -> None:
    step = f"losses = {{'a': F.mse_loss(out, y), 'b': F.{name}(out, y)}}\nloss = sum(2 * losses[k] for k in losses)"
    assert "loss.backward()" in converted(tmp_path, script(f"out = model(x)[0]\n{step}"))


@pytest.mark.parametrize(
    "lines",
    [
        "loss = 0\nfor k in range(len(parts)):\n    loss += F.mse_loss(parts[k], y)",
        "loss = sum(F.mse_loss(part, label) for part, label in zip(parts, y))",
        "losses = []\nfor part in parts:\n    losses.append(F.mse_loss(part, y[0]))\nloss = sum(losses)",
    ],
)
def test_a_loop_over_samples_or_layers_is_listed_where_it_is_not_known_which(lines: str, tmp_path: Path) -> None:
    text = script(f"parts = detector(x)\n{lines}").replace("model = Net()", DETECTOR + "model = Net()")
    result = conversion(tmp_path, "import torchvision\n" + text)
    (finding,) = (f for f in result.findings if f.code == "RF307")
    assert not finding.edits and "it is not known whether its entries are samples" in finding.message
    assert "loss.backward()" in result.files[0].text


@pytest.mark.parametrize(
    "loss",
    [
        "sum(F.mse_loss(part, y) for part in parts) / len(parts)",
        "torch.stack([F.mse_loss(part, y) for part in parts]).mean()",
    ],
)
def test_a_mean_over_samples_or_layers_is_a_mean(loss: str, tmp_path: Path) -> None:
    text = script(f"parts = detector(x)\nloss = {loss}").replace("model = Net()", DETECTOR + "model = Net()")
    assert not [f for f in conversion(tmp_path, "import torchvision\n" + text).findings if f.code == "RF307"]


def test_the_rate_of_each_optimizer_follows_its_own_loss(tmp_path: Path) -> None:
    second = "head = Net()\noptimizer2 = optim.Adam(head.parameters(), lr=1e-3)\n"
    step = "optimizer2.zero_grad()\nerror = F.mse_loss(head(x)[0], y)\nerror.backward()\noptimizer2.step()\n"
    lines = f"{step}loss = F.mse_loss(out, y, reduction='sum')"
    found = converted(tmp_path, script(lines).replace("for i, (x", second + "for i, (x"))
    assert "optimizer = optim.SGD(model.parameters(), lr=args.lr)" in found
    assert "optimizer2 = optim.Adam(head.parameters(), lr=rd.scaled_lr(1e-3))" in found


LOSSES = {
    "sum": SUMS[1],
    "evidence": SUMS[5],
    "several": "loss = F.mse_loss(out, y, reduction='sum') + F.l1_loss(out, y)",
    "mean": MEANS[0],
    "layers": LISTS[-9],
    "rows": SUMS[-5],
    "setting": "loss = F.mse_loss(out, y, reduction='sum') / args.batch_size",
}
BLOCK = """\


def NAME():
    torch.manual_seed(0)
    loader = DataLoader(data, args.batch_size, drop_last=True)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr)
    total = 0
    for i, (x, y) in enumerate(loader):
        out, mu = model(x)
        optimizer.zero_grad()
        LINES
        loss.backward()
        optimizer.step()
        total += loss.item()
        print("NAME", i, loss.item(), loss.item() / len(x), *model.layer.weight.detach().flatten().tolist())
    print("NAME total", total)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A script with a training for each loss, and what it is converted to."""
    original, changed = tmp_path_factory.mktemp("original"), tmp_path_factory.mktemp("changed")
    blocks = (
        BLOCK.replace("NAME", name).replace("LINES", lines.replace("\n", "\n        "))
        for name, lines in LOSSES.items()
    )
    text = HEAD.partition("loader =")[0] + "".join(blocks) + "\n\n" + "".join(f"{name}()\n" for name in LOSSES)
    (original / "train.py").write_text(text)
    shutil.copy(original / "train.py", changed)
    (file,) = plan_conversion(read_project(changed / "train.py")).files
    file.path.write_text(file.text)
    add_runtime(changed)
    return original, changed


def figures(run: dict, *names: str) -> list[float]:
    """Return the numbers that rank 0 printed for some of the losses."""
    assert set(run["statuses"]) == {0}, run["outputs"]
    lines = [line for line in run["outputs"][0].splitlines() if line.split()[0] in names]
    found = [float(number) for line in lines for number in re.findall(r"-?\d+\.\d+(?:e-?\d+)?", line)]
    assert len(found) > 20
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_a_global_batch_gives_the_training_of_one_process(
    world_size: int, folders: tuple[Path, Path], launcher: Launcher
) -> None:
    original, changed = folders
    alone = figures(launcher.run(original, "train.py", []), *LOSSES)
    run = launcher.run(changed, "train.py", [], world_size=world_size, RETROFIT_BATCH="global")
    assert figures(run, *LOSSES) == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize("world_size", [2, 3])
def test_by_default_the_rate_of_a_mean_alone_follows_the_batch(
    world_size: int, folders: tuple[Path, Path], launcher: Launcher
) -> None:
    original, changed = folders
    run = launcher.run(changed, "train.py", ["--batch_size", "2"], world_size=world_size)
    whole = ["--batch_size", str(2 * world_size)]
    sums, means = ("sum", "evidence", "several", "rows"), ("mean", "setting", "layers")
    of_sums = figures(launcher.run(original, "train.py", whole), *sums)
    of_means = figures(launcher.run(original, "train.py", [*whole, "--lr", str(0.01 * world_size)]), *means)
    assert figures(run, *sums) == pytest.approx(of_sums, rel=1e-9)
    assert figures(run, *means) == pytest.approx(of_means, rel=1e-9)


def backward_of(folder: Path, *lines: str) -> tuple[Project, ast.Call, Scope]:
    """Return the project of a script with these lines in its loop over the batches, and the call of backward there."""
    (folder / "train.py").write_text("".join([HEAD, "for x, y in loader:\n", *(f"    {line}\n" for line in lines)]))
    project = read_project(folder / "train.py")
    frame = next(path.frames[0] for path in project.paths)
    assert isinstance(frame.node, ast.Call)
    return project, frame.node, frame.scope


def test_what_is_known_of_a_loss_stays_known_when_no_more_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, backward, scope = backward_of(tmp_path, "loss = F.mse_loss(model(x)[1], y)", "loss.backward()")
    assert backward_kind(project, backward, scope).parts == {kinds.MEAN}
    monkeypatch.setattr(reader, "MOST_STEPS", 0)
    assert backward_kind(project, backward, scope).parts == {kinds.MEAN}


@pytest.mark.parametrize(("most_steps", "is_said"), [(0, True), (reader.MOST_STEPS, False)])
def test_a_loss_that_is_not_read_to_its_end_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most_steps: int, is_said: bool
) -> None:
    monkeypatch.setattr(reader, "MOST_STEPS", most_steps)
    show(
        conversion(tmp_path, HEAD + "for x, y in loader:\n    loss = F.mse_loss(model(x)[1], y)\n    loss.backward()\n")
    )
    assert ("too many branches and calls to be read to its end" in capsys.readouterr().err) == is_said


TWO = ["one, two = F.l1_loss(model(x)[1], y), F.mse_loss(model(x)[1], y, reduction='sum')"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a, b = reversed((one, two))", "loss = b"], {kinds.MEAN, kinds.SUM}),
        (["loss = sorted([one, two])[0]"], {kinds.MEAN, kinds.SUM}),
        (["loss = list((one, two))[0]"], {kinds.MEAN}),
        (["pairs = [(one, two), (one, two)]", "a, b = zip(*pairs)", "loss = sum(a)"], {kinds.MEAN}),
        (["loss = dict(a=one, b=two)['b']"], {kinds.SUM}),
        (["loss = sum({'a': one, 'b': two}.values())"], {kinds.MEAN, kinds.SUM}),
        (["values = {name: value for name, value in [('a', two)]}", "loss = values['a']"], {kinds.SUM}),
        (["loss = 0", "for name, value in {'a': two}.items():", "    loss = loss + value"], {kinds.SUM}),
        (["values = {'a': two}", "loss = 0", "for name in values:", "    loss = loss + values[name]"], {kinds.SUM}),
    ],
)
def test_the_kind_of_a_loss_that_is_taken_from_a_container(lines: list[str], expected: set, tmp_path: Path) -> None:
    project, backward, scope = backward_of(tmp_path, *TWO, *lines, "loss.backward()")
    assert backward_kind(project, backward, scope).parts == expected


CUSTOM = """\
def custom(p, y, reduction="mean"):
    if reduction == "sum":
        return ((p - y) ** 2).sum()
    return ((p - y) ** 2).mean()
"""


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        ("partial(own.custom, reduction='sum')", {kinds.SUM}),
        ("partial(lambda weight, p, y: own.custom(p, y, 'sum'), 1)", {kinds.SUM}),
        ("partial(own.custom)", {kinds.MEAN}),
        ("next(map(own.custom, [model(x)[1]], [y])) or own.custom", {kinds.MEAN, kinds.SUM}),
    ],
)
def test_what_partial_binds_decides_and_no_default_alone(criterion: str, expected: set, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CUSTOM)
    lines = [
        "from functools import partial",
        "import own",
        f"criterion = {criterion}",
        "loss = criterion(model(x)[1], y)",
    ]
    project, backward, scope = backward_of(tmp_path, *lines, "loss.backward()")
    assert backward_kind(project, backward, scope).parts == expected


def test_a_name_that_is_imported_or_none_does_not_decide(tmp_path: Path) -> None:
    function = (
        "def custom(p, y):\n    try:\n        from fancy import weights\n    except ImportError:\n"
        '        weights = None\n    if weights is not None:\n        return F.mse_loss(p, y, reduction="sum")\n'
        "    return F.mse_loss(p, y)\n\n\n"
    )
    (tmp_path / "own.py").write_text("import torch.nn.functional as F\n\n\n" + function)
    project, backward, scope = backward_of(
        tmp_path, "import own", "loss = own.custom(model(x)[1], y)", "loss.backward()"
    )
    assert backward_kind(project, backward, scope).parts == {kinds.MEAN, kinds.SUM}


REDUCED = """\
import torch.nn.functional as F


class Reduced:
    def __init__(self, reduction="mean"):
        self.reduction = reduction

    def __call__(self, p, y):
        if self.reduction == "sum":
            return F.mse_loss(p, y, reduction="sum")
        return F.mse_loss(p, y)


class Changed(Reduced):
    def __init__(self, **options):
        super().__init__()
        CHANGE


CHANGE_OUTSIDE
"""


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [
        ("pass", "", {kinds.MEAN}),
        ("self.reduction = 'sum'", "", {kinds.MEAN, kinds.SUM}),
        ("for name, value in options.items(): setattr(self, name, value)", "", {kinds.MEAN, kinds.SUM}),
        ("self.__dict__.update(options)", "", {kinds.MEAN, kinds.SUM}),
        ("vars(self).update(options)", "", {kinds.MEAN, kinds.SUM}),
        ("pass", "def change(loss: Changed, name, value):\n    setattr(loss, name, value)", {kinds.MEAN}),
        ("pass", "loss = Changed()\nsetattr(loss, 'reduction', 'sum')", {kinds.MEAN, kinds.SUM}),
    ],
)
def test_an_attribute_that_a_text_may_set_does_not_decide(
    inside: str, outside: str, expected: set, tmp_path: Path
) -> None:
    text = REDUCED.replace("CHANGE_OUTSIDE", outside).replace("CHANGE", inside)
    (tmp_path / "own.py").write_text(text)
    lines = ["import own", "criterion = own.Changed(reduction='sum')", "loss = criterion(model(x)[1], y)"]
    project, backward, scope = backward_of(tmp_path, *lines, "loss.backward()")
    assert backward_kind(project, backward, scope).parts == expected

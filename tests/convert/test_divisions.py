"""Losses that are divided by something of the batch of one process."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

from retrofit.rules.finding import Finding

HEAD = """\
import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--parts", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randint(0, 3, (16,))), 4, shuffle=True)
model = nn.Linear(3, 3)
optimizer = optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()


def weighed(loss, weight=None, factor=None):
    if weight is not None:
        loss = loss * weight
    return loss.mean() if factor is None else loss.sum() / factor


class Heads(nn.Module):
    def __init__(self, mean=True):
        super().__init__()
        self.mean, self.measure = mean, nn.CrossEntropyLoss()

    def boxes(self, output, target):
        found = target > 0
        number = max(1, found.sum(dim=1).data.sum())
        box, kind = F.smooth_l1_loss(output[found], target[found], reduction="sum"), (output * found).sum()
        box /= number
        return {"box": box, "kind": kind / number}

    def forward(self, output, target):
        n, classes = output.size()
        loss = self.measure(output, target)
        if self.mean:
            loss /= n
        return loss / classes


def matched(target):
    found = []
    for row in (target > 0).t():
        kept = target[row]
        found.append(kept.sum(1).long())
    return found


def overlap(output, target):
    both = (output * target).sum()
    return 1 - 2 * both / (output.sum() + target.sum() + 1)


"""
TRAIN = """\
for i, (x, y) in enumerate(loader):
    losses = F.cross_entropy(model(x), y, reduction="none")
    mask = y > 0
    LINES
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def script(lines: str) -> str:
    return HEAD + TRAIN.replace("LINES", lines.replace("\n", "\n    "))


COUNT = "count = nn.CrossEntropyLoss(ignore_index=2)\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("loss = (losses * mask).sum() / mask.sum()", "/ rd.loss.rank_share(rd.loss.batch_count(mask.sum()))"),
        (
            "loss = losses[mask].sum() / (mask.sum() + 1e-6)",
            "/ (rd.loss.rank_share(rd.loss.batch_count(mask.sum()) + 1e-6))",
        ),
        ("loss = losses.sum().div(mask.sum())", ".div(rd.loss.rank_share(rd.loss.batch_count(mask.sum())))"),
        ("loss = losses.sum() * (1 / mask.sum())", "* (1 / rd.loss.rank_share(rd.loss.batch_count(mask.sum())))"),
        ("loss = torch.div(losses.sum(), mask.sum())", ", rd.loss.rank_share(rd.loss.batch_count(mask.sum())))"),
        ("loss = losses.sum()\nloss /= len(y[mask])", "loss /= rd.loss.rank_share(rd.loss.batch_count(len(y[mask])))"),
        ("if i % 2:\n    mask = ~mask\nloss = losses.sum() / mask.sum()", "rd.loss.batch_count(mask.sum())"),
        (
            "n = max(mask.sum().item(), 1)\nloss = losses.sum() / n",
            "n = rd.loss.rank_share(max(rd.loss.batch_count(mask.sum().item()), 1))",
        ),
        ("loss = weighed(losses, factor=mask.sum())", "loss.sum() / rd.loss.rank_share(rd.loss.batch_count(factor))"),
        (
            "n = sum(len(part[part > 0]) for part in y)\nloss = losses.sum() / n",
            "/ rd.loss.rank_share(rd.loss.batch_count(n))",
        ),
        (
            "import numpy as np\nn = np.sum(y.numpy() * y.numpy())\nloss = losses.sum() / float(n)",
            "/ rd.loss.rank_share(rd.loss.batch_count(float(n)))",
        ),
        ("n = sum(y.tolist())\nloss = losses.sum() / n", "/ rd.loss.rank_share(rd.loss.batch_count(n))"),
        (
            "n = 3 * len(y) if args.parts else int(mask.sum())\nloss = losses.sum() / n",
            "/ rd.loss.rank_share(rd.loss.batch_count(n))",
        ),
        (
            "found = Heads().boxes(model(x), y)\nloss = found['box'] + sum(found.values())",
            "number = rd.loss.rank_share(max(1, rd.loss.batch_count(found.sum(dim=1).data.sum())))",
        ),
    ],
)
def test_a_sum_is_divided_by_the_count_of_all_processes(lines: str, expected: str, tmp_path: Path) -> None:
    (line,) = (line for line in converted(tmp_path, script(lines)) if "batch_count" in line)
    assert expected in line


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("loss = criterion(model(x), y)\nloss = loss / x.size(0)", "loss = loss / rd.loss.batch_count(x.size(0))"),
        ("loss = losses.mean()\nloss /= float(len(x))", "loss /= rd.loss.batch_count(float(len(x)))"),
        ("loss = losses.mean() / mask.sum()", "loss = losses.mean() / rd.loss.batch_count(mask.sum())"),
        ("loss = Heads()(model(x), y)", "loss /= rd.loss.batch_count(n)"),
        ("loss = losses.mean() * (1 / len(x))", "loss = losses.mean() * (1 / rd.loss.batch_count(len(x)))"),
        (
            "n = 1 / torch.tensor(x.numel())\nloss = n * losses.mean()",
            "n = 1 / rd.loss.batch_count(torch.tensor(x.numel()))",
        ),
        ("loss = losses.mean()\nloss *= 0.5 / x.shape.numel()", "loss *= 0.5 / rd.loss.batch_count(x.shape.numel())"),
    ],
)
def test_a_mean_is_divided_by_the_samples_of_all_processes(lines: str, expected: str, tmp_path: Path) -> None:
    (line,) = (line for line in converted(tmp_path, script(lines)) if "batch_count" in line)
    assert line == expected


@pytest.mark.parametrize(
    "lines",
    [
        "loss = losses.sum() / x.size(0)",
        "loss = losses.sum()\nloss = loss / (len(x) * 10)",
        "loss = losses.mean() / args.parts",
        "loss = losses.mean() / len(loader)",
        "loss = losses.mean() / x.shape[1]",
        "loss = losses.mean() * (1 / x.shape[1])",
        "n = 1 / len(x)\nloss = losses.sum() * n",
        "from math import *\ne = float(e)\nloss = losses.mean() * e",
        "loss = 0\nfor j in range(len(x)):\n    loss += losses[j : j + 1].mean() * (1 / len(x))",
        "loss = weighed(losses)",
        "loss = 0\nfor j in range(len(x)):\n    loss += losses[j : j + 1].mean() / len(x)",
        "loss = 0\nfor j in range(len(x)):\n    loss += losses[j : j + 1].mean()\nloss = loss / len(x)",
        "loss = 0\nfor j in range(len(x)):\n    loss = loss + weighed(losses[j], factor=mask[j].sum())",
        COUNT + "loss = sum(count(model(x[j]), y[j]) for j in range(len(x)))",
        COUNT + "loss = 0\nfor j in range(len(x)):\n    loss += count(model(x[j]), y[j])",
        "out = model(x)\nloss = (1 - (out * x).sum(1) / (out.sum(1) + 1)).mean()",
    ],
)
def test_a_mean_over_the_samples_is_unchanged(lines: str, tmp_path: Path) -> None:
    found = conversion(tmp_path, script(lines)).findings
    assert [finding for finding in found if finding.code in ("RF302", "RF308")] == []


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            "loss = model(x).sum()\nif losses.max() > 1:\n    loss = losses.sum() / mask.sum()",
            "this process's own count",
        ),
        (
            "loss = losses.sum()\nif losses.max() > 1:\n    loss = weighed(losses, factor=mask.sum())",
            "this process's own count",
        ),
        ("loss = (losses * losses).sum() * losses.mean() / mask.sum()", "this process's own count"),
        (
            COUNT + "loss = losses.sum()\nif losses.max() > 1:\n    loss = count(model(x), y)",
            "elements that this process counts",
        ),
        ("n = max(mask.sum(), 1)\nprint(n)\nloss = losses.sum() / n", "this process's own count"),
    ],
)
def test_a_division_that_cannot_be_changed_safely_is_listed(lines: str, words: str, tmp_path: Path) -> None:
    (finding,) = (f for f in conversion(tmp_path, script(lines)).findings if f.code == "RF302")
    assert words in finding.message and not finding.edits


def test_the_largest_number_of_a_batch_is_that_of_all_ranks(tmp_path: Path) -> None:
    (file,) = (f for f in conversion(tmp_path, script("loss = losses.mean() / max(y.tolist())")).files)
    assert "losses.mean() / max(rd.loss.batch_rows(y).tolist())" in file.text


@pytest.mark.parametrize(
    "lines",
    [
        "rows, columns = (y > 0).nonzero(as_tuple=True)\n    loss = (1 - model(x)[rows, columns].sigmoid()).mean()",
        "places = matched(y)\n    loss = (1 - model(x)[places[0]].sigmoid()).mean()",
    ],
)
def test_a_mean_over_selected_elements_is_one_of_all_processes(lines: str, tmp_path: Path) -> None:
    (finding,) = of_losses(lines, tmp_path)
    assert finding.code == "RF302" and "chosen" in finding.message
    assert "rd.loss.chosen_mean" in "".join(edit.text for edit in finding.edits)


def test_a_divisor_that_is_computed_from_itself_is_read(tmp_path: Path) -> None:
    lines = "import somewhere\nn = somewhere.positives(y)\nn = max(n, 1)\nloss = ((model(x) - 1) ** 2).sum() / n"
    (finding,) = (f for f in conversion(tmp_path, script(lines)).findings if f.code == "RF307")
    assert "divided by what is not known" in finding.message


def of_losses(lines: str, folder: Path) -> list[Finding]:
    """Return the findings about how a loss is computed."""
    train = f"for x, y in loader:\n    y = F.one_hot(y, 3).float() - 0.5\n    {lines}\n"
    train += "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    return [f for f in conversion(folder, HEAD + train).findings if f.code in ("RF302", "RF307", "RF309")]


@pytest.mark.parametrize(
    "outputs",
    ["{'a': model(x), 'b': -model(x)}", "[model(x), -model(x)]", "tuple(scale * model(x) for scale in (1, 2))"],
)
def test_a_mean_over_outputs_is_divided_by_their_number(outputs: str, tmp_path: Path) -> None:
    loss = "outs = %s\nlosses = [criterion(out, y) for out in %s]\nloss = sum(losses)\nloss = loss / float(len(outs))"
    loss %= outputs, "outs.values()" if outputs[0] == "{" else "outs"
    lines = converted(tmp_path, script(loss))
    assert "loss = loss / float(len(outs))" in lines


COUNTED = """\
class Compute:
    def __init__(self, measure, optimizer):
        self.measure, self.optimizer = measure, optimizer

    def __call__(self, out, y, number):
        loss = self.measure(out, y) / number
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item() * number


def run(batches, compute):
    total = words = 0
    for x, y in batches:
        number = (y != 0).sum().item()
        total += compute(model(x), y, number)
        words += number
    return total / words


print(run(loader, Compute(nn.CrossEntropyLoss(reduction="sum"), optimizer)))
"""


def test_a_count_that_a_loss_is_divided_by_is_added_up_over_the_ranks_once(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + COUNTED)
    assert any(line.endswith("/ rd.loss.rank_share(rd.loss.batch_count(number))") for line in lines)
    assert "number = (y != 0).sum().item()" in lines
    (finding,) = conversion(tmp_path, HEAD + COUNTED).listed
    assert finding.message.startswith("rank 0's share: run(loader")


@pytest.mark.parametrize(
    "count", ["mask.numel()", "torch.tensor(torch.numel(mask))", "torch.as_tensor(float(len(mask)))"]
)
def test_a_share_of_the_batch_is_that_of_all_processes_however_its_number_is_written(
    count: str, tmp_path: Path
) -> None:
    lines = f"part = 1 - torch.sum(mask) / {count}\nloss = part * losses.mean()"
    (line,) = (line for line in converted(tmp_path, script(lines)) if line.startswith("part ="))
    assert line == f"part = 1 - rd.loss.batch_mean(torch.sum(mask) / {count})"


def test_one_divided_by_the_samples_is_listed_where_it_is_a_factor_twice(tmp_path: Path) -> None:
    lines = "n = 1 / len(x)\nloss = n * losses.mean() + n * losses.sum()"
    (finding,) = (f for f in conversion(tmp_path, script(lines)).findings if f.code == "RF308")
    assert not finding.edits and "rank_share" in finding.help


FEATURES = """\
out = torch.cat([y, model(x).argmax(1)]), model(x)
kept = []
for part in out:
    kept.append(torch.chunk(part.float(), 2))
loss = 0
for part in kept:
    loss = loss + F.mse_loss(part[0], part[1]) / part[0].size(0)
"""


def test_a_sum_of_what_a_list_keeps_is_that_of_all_processes(tmp_path: Path) -> None:
    lines = """\
kept = []
for part in (y, 2 * y):
    kept.append(part)
loss = losses.sum() / torch.sum(torch.cat(kept))
"""
    text = "\n".join(converted(tmp_path, script(lines)))
    assert "rd.loss.batch_sum(torch.sum(torch.cat(kept)))" in text and "batch_count" not in text


def test_a_mean_over_what_a_list_keeps_of_the_batch_is_divided_by_the_samples_of_all(tmp_path: Path) -> None:
    (line,) = (line for line in converted(tmp_path, script(FEATURES)) if "batch_count" in line)
    assert line.endswith("/ rd.loss.batch_count(part[0].size(0))")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("loss = losses.sum() / 4", "loss = losses.sum() / rd.loss.rank_share(rd.loss.global_batch(4))"),
        ("loss = losses.sum().div(4)", "loss = losses.sum().div(rd.loss.rank_share(rd.loss.global_batch(4)))"),
        ("loss = losses.sum() / (4 * 3)", "loss = losses.sum() / (rd.loss.rank_share(rd.loss.global_batch(4 * 3)))"),
        (
            "loss = losses.mean()\nprint(mask.sum().item() / 4)",
            "print(rd.reduce_total(mask.sum()).item() / rd.loss.global_batch(4))",
        ),
        ("loss = losses.mean() / 4", "loss = losses.mean() / 4"),
        ("loss = F.cross_entropy(model(x) / 4, y)", "loss = F.cross_entropy(model(x) / 4, y)"),
        ("loss = losses.mean()\nprint(loss.item() / 4)", "print(rd.reduce_loss(loss).item() / 4)"),
    ],
)
def test_a_number_as_large_as_the_batch_divides_a_sum_over_it(lines: str, expected: str, tmp_path: Path) -> None:
    assert expected in converted(tmp_path, script(lines))


LENGTHS = """\
train_dl = DataLoader(loader.dataset, 4, shuffle=True)
both = {"train": train_dl, "check": DataLoader(loader.dataset, 4)}
trainset = TensorDataset(torch.randn(16, 3), torch.randint(0, 3, (16,)))


class Trainer:
    def __init__(self, train_dl):
        self.train_dl = train_dl

    def run(self, queue):
        bar, count, total = tqdm(self.train_dl), len(queue), 0.0
        for x, y in bar:
            loss = criterion(model(x), y)
            total += loss.item() / NUMBER
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return total


print(Trainer(train_dl).run(train_dl))
"""


@pytest.mark.parametrize(
    "number",
    ["len(self.train_dl)", "len(queue)", "len(bar)", "count", "float(len(trainset))", 'len(both["train"])', "len([1])"],
)
def test_a_number_of_batches_or_of_all_samples_is_that_of_every_process(number: str, tmp_path: Path) -> None:
    text = HEAD.replace("import argparse\n", "import argparse\nfrom tqdm import tqdm\n")
    lines = converted(tmp_path, text + LENGTHS.replace("NUMBER", number))
    (line,) = (line for line in lines if "total +=" in line)
    assert line.strip() == f"total += rd.reduce_loss(loss).item() / {number}"


def test_a_sum_that_is_divided_by_the_number_of_batches_is_a_sum(tmp_path: Path) -> None:
    text = HEAD.replace("import argparse\n", "import argparse\nfrom tqdm import tqdm\n")
    lengths = LENGTHS.replace("criterion(model(x), y)", 'F.cross_entropy(model(x), y, reduction="sum") / len(bar)')
    text = "\n".join(converted(tmp_path, text + lengths.replace("NUMBER", "len(y)")))
    assert "rd.loss.sum_loss(loss).backward()" in text and "total += rd.reduce_loss(loss.item() / len(y))" in text

"""Queues, memory banks and prototypes that each process keeps of the samples of all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.arange(44), torch.randn(44, 6), torch.arange(44) % 4)
loader = DataLoader(data, batch_size=6)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("kept", F.normalize(torch.randn(16, 4)))
        self.register_buffer("classes", torch.arange(16) % 4)
        self.place = 0

{method}

    def forward(self, x):
        return F.normalize(self.layer(x))


class Bank:
    def __init__(self, size):
        self.size = size
        self.items = []

    def push(self, rows):
        self.items.append(rows)
        if len(self.items) > self.size:
            self.items.pop(0)

    def rows(self):
        return torch.cat(self.items)


class ToAllBefore(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.classes = torch.zeros(44, 4), torch.zeros(44, 4)

    def forward(self, rows, classes, places):
        self.rows[places, :] = rows.data
        self.classes[places, :] = classes.float()
        same = (classes @ self.classes.t() > 0).float()
        products = rows @ self.rows.t() * 0.5
        return (F.softplus(products) - same * products).mean()


def train():
    net = Encoder()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    {before}
    for epoch in range(3):
        for number, x, y in loader:
            z = net(x)
            {loss}
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            {after}
    print("{name}", *(f"{{p.sum().item():.4f}}" for p in net.parameters()))


train()
"""
NO_METHOD = "    size = 16"
LOSS = "loss = F.cross_entropy(z @ {rows}.t(), y)"
OF_NET = LOSS.format(rows="net.kept.clone()")


def method(name: str, *lines: str) -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f"    @torch.no_grad()\n    def {name}:\n{body}"


def form(method: str = NO_METHOD, before: str = "pass", loss: str = OF_NET, after: str = "pass") -> dict[str, str]:
    return {"method": method, "before": before, "loss": loss.replace("\n", "\n            "), "after": after}


GATHERED = {
    "queue": form(
        method(
            "put(self, rows)",
            '"""Put rows in place of the oldest ones."""',
            "n = rows.shape[0]",
            "self.kept = torch.roll(self.kept, n, 0)",
            "self.kept[:n] = rows",
            "self.place = (self.place + n) % 16",
        ),
        after="net.put(z)",
    ),
    "with_classes": form(
        method(
            "put(self, rows, classes)",
            "n = len(rows)",
            "self.kept = torch.roll(self.kept, n, 0)",
            "self.kept[:n] = rows",
            "self.classes = torch.roll(self.classes, n, 0)",
            "self.classes[:n] = classes",
        ),
        loss="same = (y[:, None] == net.classes[None]).float()\n"
        "loss = -((same * (z @ net.kept.t()).log_softmax(1)).sum(1) / same.sum(1).clamp(min=1)).mean()",
        after="net.put(z, y)",
    ),
    "prototypes": form(
        method(
            "update(self, rows, classes)",
            "for each in classes.unique():",
            "    self.kept[each] = 0.9 * self.kept[each] + 0.1 * rows[classes == each].mean(0)",
        ),
        after="net.update(z, y)",
    ),
    "batches": form(
        before="waiting = deque(maxlen=3)",
        loss="loss = z.pow(2).mean()\nif len(waiting):\n"
        "    loss = F.cross_entropy(z @ torch.cat(list(waiting)).t(), y)",
        after="waiting.append(z.detach())",
    ),
    "bank": form(
        before="bank = F.normalize(torch.randn(44, 4))",
        loss=LOSS.format(rows="bank").replace(", y)", ", number)"),
        after="bank[number] = F.normalize(0.5 * bank[number] + 0.5 * z.detach())",
    ),
    "object": form(
        before="bank = Bank(3)",
        loss=f"bank.push(net(x).detach())\n{LOSS.format(rows='bank.rows()').replace(', y)', ', y % 2)')}",
    ),
    "columns": form(
        before="bank = F.normalize(torch.randn(4, 44))",
        loss=LOSS.format(rows="bank.t()").replace(", y)", ", number)"),
        after="bank[:, number] = F.normalize(z).t().data",
    ),
    "criterion": form(before="criterion = ToAllBefore()", loss="loss = criterion(z, F.one_hot(y, 4).float(), number)"),
}
BEFORE_IT_IS_KEPT = ("queue", "with_classes")  # as it is given to the method
WHOLE_ALREADY = {
    "largest": form(
        before="means = F.normalize(torch.randn(4, 4))",
        loss=LOSS.format(rows="means.clone()"),
        after="means[int(number.min()) % 4] = z.detach().max(0).values",
    ),
    "of_the_loss": form(
        before="kept = F.normalize(torch.randn(16, 4))",
        loss=LOSS.format(rows="kept"),
        after="kept = torch.cat([kept, z.detach()])[-16:]",
    ),
    "before_the_loss": form(
        method("put(self, rows)", "self.kept = torch.cat([rows, self.kept])[:16]"), loss=f"net.put(z)\n{OF_NET}"
    ),
}
GATHERED_NEXT_TO_WHOLE = {
    "pairs": form(
        before="waiting = deque(maxlen=3)",
        loss="loss = z.pow(2).mean()\nfor rows, classes in waiting:\n"
        "    same = (y[:, None] == classes[None]).float()\n"
        "    loss = loss - (same * (z @ rows.t()).log_softmax(1)).sum(1).mean()",
        after="waiting.append((z.detach(), y))",
    ),
}
REFUSED = {
    "a place that is counted elsewhere": form(
        method("put(self, rows)", "self.kept[self.place : self.place + len(rows)] = rows"),
        after="net.put(z); net.place = (net.place + len(z)) % 16",
    ),
    "a place that is drawn": form(
        method("put(self, rows)", "for row in rows:", "    self.kept[random.randrange(16)] = row"), after="net.put(z)"
    ),
    "how many there are": form(
        method("put(self, rows)", "self.kept = torch.cat([rows, self.kept])[:16]"),
        loss=LOSS.format(rows="net.kept[: max(net.place, 4)]"),
        after="net.put(z); net.place = min(16, net.place + len(z))",
    ),
    "an entry that each rank draws": form(
        before="slots = [torch.zeros(6, 4) for _ in range(4)]",
        loss=LOSS.format(rows="torch.cat(slots)"),
        after="slots[random.randrange(4)] = z.detach()",
    ),
    "noise that each rank draws": form(
        before="kept = F.normalize(torch.randn(16, 4))",
        loss=LOSS.format(rows="kept"),
        after="kept = torch.cat([kept, z.detach() + 0.1 * torch.randn(4)])[-16:]",
    ),
    "a drawn number that is given": form(
        method("put(self, rows, by)", "self.kept = torch.roll(self.kept, by, 0)", "self.kept[: len(rows)] = rows"),
        after="net.put(z, random.randrange(16))",
    ),
    "a number of rows that is not given": form(
        before="def put(rows):\n        with torch.no_grad():\n"
        "            net.kept = torch.roll(net.kept, len(x), 0)\n            net.kept[: len(rows)] = rows",
        after="put(z)",
    ),
    "another state for each batch": form(after="net.kept: torch.Tensor = z.detach()"),
    "rows of a function that runs the model": form(
        before="bank = F.normalize(torch.randn(44, 4))\n    def encode(x):\n        return net(x)",
        loss="bank = bank.detach()\nbank[number] = encode(x)\nloss = F.cross_entropy(z @ bank.t(), number)",
    ),
    "a sum at a place of the batch": form(
        method("put(self, rows, classes)", "self.kept[classes.min()] = rows.sum(0)"), after="net.put(z, y)"
    ),
    "several tensors that are given as one": form(
        method("put(self, pair)", "rows, classes = pair", "self.kept[: len(rows)] = rows"), after="net.put([z, y])"
    ),
    "a mean at a drawn place": form(
        method("put(self, rows)", "self.kept[random.randrange(16)] = rows.mean(0)"), after="net.put(z)"
    ),
}


@pytest.mark.parametrize("name", GATHERED | WHOLE_ALREADY)
def test_what_is_kept_is_gathered_once(tmp_path: Path, name: str) -> None:
    gathered, other = "rd.data.gather_batch(", "batch_rows"
    if name in WHOLE_ALREADY or name in BEFORE_IT_IS_KEPT:
        gathered, other = "rd.loss.batch_rows(", "gather_batch"
    result = conversion(tmp_path, SCRIPT.format(name=name, **(GATHERED | WHOLE_ALREADY)[name]))
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert not result.refusals
    assert gathered in text and other not in text


@pytest.mark.parametrize("name", GATHERED_NEXT_TO_WHOLE)
def test_what_is_kept_with_rows_of_all_ranks_is_gathered(tmp_path: Path, name: str) -> None:
    result = conversion(tmp_path, SCRIPT.format(name=name, **GATHERED_NEXT_TO_WHOLE[name]))
    (text,) = [file.text for file in result.files if file.path.name == "train.py"]
    assert not result.refusals
    assert "waiting.append((z.detach(), rd.loss.batch_rows(y)))" in text


@pytest.mark.parametrize("name", REFUSED)
def test_what_each_rank_would_place_on_its_own_is_refused(tmp_path: Path, name: str) -> None:
    refused = conversion(tmp_path, SCRIPT.format(name=name, **REFUSED[name])).refusals
    assert "samples-kept" in [finding.kind for finding in refused]


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_processes_keep_what_one_keeps(world_size: int, tmp_path: Path, launcher: Launcher) -> None:
    """The last batch has 2 samples, so that the third of three processes has none of it."""
    forms = GATHERED | WHOLE_ALREADY | GATHERED_NEXT_TO_WHOLE
    for folder in ("alone", "together"):
        (tmp_path / folder).mkdir()
        for name, parts in forms.items():
            (tmp_path / folder / f"{name}.py").write_text(SCRIPT.format(name=name, **parts))
    for name in forms:
        assert main(["convert", str(tmp_path / "together" / f"{name}.py"), "--write"]) == 0
        (alone,) = launcher.run(tmp_path / "alone", f"{name}.py", [])["outputs"]
        run = launcher.run(tmp_path / "together", f"{name}.py", [], world_size=world_size, RETROFIT_BATCH="global")
        assert set(run["statuses"]) == {0}, run["outputs"]
        assert alone.strip() in run["outputs"][0], name

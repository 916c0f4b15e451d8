"""Lists and queues that keep samples of earlier batches: banks are refused, pools that are drawn from are listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.convert.plan import Conversion

SCRIPT = """\
import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def tensor(values):
    made = values
    if isinstance(values, list):
        made = torch.stack(values)
    return made.float()


def pair(first, second):
    return tensor(first), second


class Pool:
    def __init__(self, size):
        self.size = size
        self.items = []

    def query(self, rows):
        given = []
        for row in rows:
            if len(self.items) < self.size:
                self.items.append(row)
                given.append(row)
            elif random.random() > 0.5:
                place = random.randrange(self.size)
                given.append(self.items[place])
                self.items[place] = row
            else:
                given.append(row)
        return torch.stack(given)


class Swap:
    def __init__(self):
        self.items = []

    def query(self, row):
        if len(self.items) < 4:
            self.items.append(row)
            return row
        self.items.append(row)
        return self.items.pop(random.randint(0, 3))


class Feeder:
    def __init__(self, loader):
        self.loader = loader
        self.waiting = deque()

    def __iter__(self):
        for batch in self.loader:
            self.waiting.append(batch)
            yield self.waiting.popleft()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.terms = []

    def forward(self, x):
        self.terms = []
        z = self.layer(x)
        self.terms.append(z.pow(2).mean())
        return z


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randint(0, 2, (32,))), batch_size=4, shuffle=True)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
kept = {kept}
for x, y in loader:
    {step}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOSS = "z = net(x)\n    loss = -F.log_softmax(z @ {rows}.t(), 1)[:, 0].mean()"
BANKS = {
    "through a function": (
        "[x for x, y in loader]",
        f"kept.extend(x)\n    {LOSS.format(rows='tensor(kept[-8:])')}\n    print(tensor(y))",
    ),
    "an entry of what a function gives": (
        "[x for x, y in loader]",
        f"kept.extend(x)\n    {LOSS.format(rows='pair(kept[-8:], y)[0]')}\n    pair(x, y)",
    ),
    "one of what a function gives": (
        "[x for x, y in loader]",
        "kept.extend(x)\n    a, b = pair(kept[-8:], kept)\n    pair(x, y)\n    "
        "loss = F.cross_entropy(net(x), y) + net(torch.stack(list(b))).mean()",
    ),
    "samples": ("[x for x, y in loader]", f"kept.extend(x)\n    {LOSS.format(rows='torch.stack(kept[-8:])')}"),
}
POOLS = {
    "a pool": ("Pool(8)", "loss = F.cross_entropy(net(kept.query(x)), y)", "self.items"),
    "one that swaps": ("Swap()", "loss = F.cross_entropy(net(kept.query(x)), y)", "self.items"),
    "a replay": (
        "[]",
        "loss = F.cross_entropy(net(x), y) + net(torch.stack(random.sample([x[0], *kept], 1))).pow(2).mean()\n"
        "    kept.append(x[0])",
        "kept",
    ),
}
NEITHER = {
    "figures": ("[]", "loss = F.cross_entropy(net(x), y)\n    kept.append(loss.item())"),
    "shown through a function": (
        "[]",
        "loss = F.cross_entropy(net(tensor(x)), y)\n    kept.append(x)\n    print(tensor(kept).sum())",
    ),
    "shown through functions that give several": (
        "[]",
        "loss = F.cross_entropy(net(pair(x, y)[0]), y)\n    kept.append(x)\n    print(pair(kept, 3)[0].sum())\n    "
        "for part in pair(kept, y):\n        print(part)",
    ),
    "of one batch": ("[]", "kept.clear()\n    kept.append(net(x))\n    loss = F.cross_entropy(kept[0], y)"),
    "emptied after it": ("[]", "kept.append(net(x))\n    loss = F.cross_entropy(kept[0], y)\n    del kept[:]"),
    "terms of a model": ("[]", "loss = F.cross_entropy(net(x), y) + sum(net.terms)"),
    "a sum": ("nn.quantized.FloatFunctional()", "z = net(x)\n    loss = F.cross_entropy(kept.add(z, z.abs()), y)"),
    "a feeder": ("(loader := Feeder(loader))", "loss = F.cross_entropy(net(x), y)"),
}


def _listed(result: Conversion) -> list[str]:
    return [finding.message for finding in (*result.findings, *result.listed)]


@pytest.mark.parametrize("kind", BANKS)
def test_a_bank_that_a_loss_reads_is_refused(tmp_path: Path, kind: str) -> None:
    kept, step = BANKS[kind]
    refusals = conversion(tmp_path, SCRIPT.format(kept=kept, step=step)).refusals
    assert [finding.kind for finding in refusals] == ["samples-kept"]


@pytest.mark.parametrize("kind", POOLS)
def test_a_pool_of_each_rank_is_listed(tmp_path: Path, kind: str) -> None:
    kept, step, name = POOLS[kind]
    result = conversion(tmp_path, SCRIPT.format(kept=kept, step=step))
    messages = [text for text in _listed(result) if "each rank keeps its own" in text]
    assert not result.refusals
    assert len(messages) == 1 and f": {name}, " in messages[0]


@pytest.mark.parametrize("rows", ["rows.data", "rows.detach().data"])
def test_a_pool_that_goes_through_an_attribute_of_a_batch_is_listed(tmp_path: Path, rows: str) -> None:
    kept, step, _ = POOLS["a pool"]
    script = SCRIPT.format(kept=kept, step=step).replace("for row in rows:", f"for row in {rows}:")
    assert any("each rank keeps its own: self.items" in text for text in _listed(conversion(tmp_path, script)))


@pytest.mark.parametrize("kind", NEITHER)
def test_what_no_later_batch_gets_is_neither(tmp_path: Path, kind: str) -> None:
    kept, step = NEITHER[kind]
    result = conversion(tmp_path, SCRIPT.format(kept=kept, step=step))
    assert not [finding for finding in result.findings if finding.code == "RF210"]
    assert not any("keeps its own" in text for text in _listed(result))


READ_ONCE = """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

kept = {START}


def flip(image, chance):
    return np.flip(image, axis=0) if np.random.random() < chance else image


def load(item, model, transforms):
    number, path = item["id"], item["path"]
{LOAD}
    x = kept[{KEY}][0:4]
    for transform in transforms:
        x = transform(x, 0.5)
    return torch.from_numpy(x.copy())


loader = DataLoader([{{"id": i, "path": f"{{i}}.raw"}} for i in range(12)], collate_fn=lambda items: items)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    for _, items in enumerate(loader):
        x = load(items[0], model, [flip])
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
READ = "np.fromfile(str(path))"
MISSING = "    if kept[number] is None:\n        kept[number] = " + READ
ABSENT = "    if number not in kept:\n        kept[number] = " + READ
KNOWN = "    if number in kept.keys():\n        pass\n    else:\n        kept[number] = " + READ
FIRST = "    if 'first' not in kept:\n        kept['first'] = " + READ
ALWAYS = "    kept[number] = kept.get(number, 0) + " + READ


@pytest.mark.parametrize(
    ("start", "load", "key", "kinds"),
    [
        ("[None for _ in range(12)]", MISSING, "number", []),
        ("{}", ABSENT, "number", []),
        ("{}", KNOWN, "number", []),
        ("{}", FIRST, "'first'", ["samples-kept"]),
        ("{}", ALWAYS, "number", ["samples-kept"]),
    ],
)
def test_what_is_read_once_for_each_sample_is_converted(
    start: str, load: str, key: str, kinds: list[str], tmp_path: Path
) -> None:
    findings = conversion(tmp_path, READ_ONCE.format(START=start, LOAD=load, KEY=key)).findings
    assert [finding.kind for finding in findings if finding.code == "RF210"] == kinds

"""A figure of one rank is listed in whatever way it gets from the step to the place that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

SCRIPT = """\
import functools
import io
import json
import operator
import queue
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
import wandb
from meters import Average
from munch import Munch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from visdom import Visdom

loader = DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 1)), 8)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
START
for epoch in range(2):
    for step, (x, y) in enumerate(loader):
        out = model(x)
        loss = nn.functional.mse_loss(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        STEP
    END
    print(epoch, step, optimizer.param_groups[0]["lr"])
"""
NET = """\
class Part(nn.Linear):
    def __init__(own, *sizes):
        super().__init__(*sizes)
        own.kept = []

    def forward(own, x):
        out = super().forward(x)
        SET
        return out


model = nn.Sequential(Part(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BOX = "class Box:\n    pass\nbox = Box()\n"
# What a script does before, with the figure of each step, and at the end of an epoch, where `# shown` is listed.
WAYS = {
    "a library's meters in a dict": (
        "meters = {name: Average() for name in ('a', 'b')}\n",
        "for name, meter in meters.items():\n            meter.add(out.max().item())",
        "print({name: meter.value()[0] for name, meter in meters.items()})  # shown",
    ),
    "a library's meter from a function": (
        "meters = [Average(), Average()]\ndef first():\n    return meters[0]\n",
        "first().add(out.max().item())",
        "print(meters[0].value())  # shown",
    ),
    "an attribute set by its name": (
        BOX,
        "for name, value in {'a': out.max(), 'b': out.min()}.items():\n            setattr(box, 'loss_' + name, value)",
        "print(box.loss_b)  # shown",
    ),
    "names listed by dir": (
        BOX + "writer = SummaryWriter()\n",
        "box.largest = out.max()",
        "for name in [n for n in dir(box) if not n.startswith('_')]:\n"
        "        writer.add_scalar(name, getattr(box, name), epoch)  # shown",
    ),
    "the dict of an object": (
        "box = SimpleNamespace()\n",
        "box.__dict__.update(largest=out.max().item())",
        "print(box.largest)  # shown",
    ),
    "what vars gives": (BOX, "vars(box)['largest'] = out.max().item()", "print(box.largest)  # shown"),
    "a key that is not known": (
        "sums = {'a': 0.0, 'b': 0.0}\n",
        "for name in sums:\n            sums[name] += out.max().item()",
        "print(sums['a'])  # shown",
    ),
    "a table that saves itself": (
        "rows = []\n",
        "rows.append({'largest': out.max().item()})",
        "pd.DataFrame(rows).to_csv('rows.csv')  # shown",
    ),
    "an image that saves itself": ("", "pass", "Image.fromarray(x[0].numpy()).save('x.png')  # shown"),
    "a bound print": ("show = functools.partial(print, 'largest')\n", "show(out.max().item())  # shown", "pass"),
    "a plot that is kept": (
        "vis = Visdom()\n",
        "window = vis.line(X=np.array([step]), Y=np.array([out.max().item()]))  # shown",
        "pass",
    ),
    "a line of a plot": (
        "_, axes = plt.subplots()\nvalues = []\n",
        "values.append(out.max().item())",
        "(line,) = axes.plot(values)  # shown",
    ),
    "a hook": (
        "seen = {}\nmodel.register_forward_hook(lambda module, given, out: seen.update(mean=out.mean().item()))\n",
        "pass",
        "print(seen['mean'])  # shown",
    ),
    "a hook in a class": (
        "class Watch:\n    def __init__(self, layer):\n        layer.register_forward_hook(self.keep)\n"
        "    def keep(self, module, given, out):\n        self.mean = out.mean().item()\nwatch = Watch(model)\n",
        "pass",
        "print(watch.mean)  # shown",
    ),
    "an attribute that the model sets": (
        "class Net(nn.Linear):\n    def forward(self, x):\n        out = super().forward(x)\n"
        "        self.largest = out.max().item()\n        return out\nmodel = Net(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        "pass",
        "print(model.largest)  # shown",
    ),
    "an attribute of a part of a model": (
        NET.replace("SET", "own.largest = out.max()"),
        "pass",
        "print(model[0].largest)  # shown",
    ),
    "two attributes at once": (
        NET.replace("SET", "own.largest, own.steps = out.max(), 1"),
        "pass",
        "print(model[0].largest)  # shown",
    ),
    "an attribute of a model set by its name": (
        NET.replace("SET", 'setattr(own, "largest", out.max())'),
        "pass",
        "print(model[0].largest)  # shown",
    ),
    "a sum in a model": (
        NET.replace("own.kept = []", "own.total = 0").replace("SET", "own.total += out.max().item()"),
        "pass",
        "print(model[0].total)  # shown",
    ),
    "a list in a model": (
        NET.replace("SET", "own.kept.append(out.max())"),
        "pass",
        "print(model[0].kept[-1])  # shown",
    ),
    "a gradient of its own": (
        "",
        "slope = torch.autograd.grad(nn.functional.mse_loss(model(x), y), model.weight)[0].norm().item()",
        "print(slope)  # shown",
    ),
    "a batch from an object of the project": (
        "class Fetch:\n    def __init__(self, loader):\n        self.loader = loader\n"
        "    def __iter__(self):\n        self.batches = iter(self.loader)\n        return self\n"
        "    def __next__(self):\n        x, y = next(self.batches)\n        return Munch(x=x, y=y)\n"
        "fetch = Fetch(loader)\n",
        "pass",
        "for batch in fetch:\n        loss = nn.functional.mse_loss(model(batch.x), batch.y)\n"
        "        loss.backward()\n        optimizer.step()\n    print(batch.x.max())  # shown",
    ),
    "a namespace from a function": (
        "def parts(out):\n    return Munch(largest=out.max().item(), least=out.min().item())\n",
        "losses = parts(out)",
        "shown = {}\n    for key, value in losses.items():\n        shown['D/' + key] = value\n"
        "    print(' '.join('%s %.3f' % pair for pair in shown.items()))  # shown",
    ),
    "a queue": ("q = queue.Queue()\n", "q.put({'a': out.max().item()})", "print(json.dumps(q.get()))  # shown"),
    "a buffer": (
        "text = io.StringIO()\n",
        "text.write(str(out.max().item()))  # shown",
        "print(text.getvalue())  # shown",
    ),
    "several dicts as one": (
        "",
        "both = ChainMap(OrderedDict(largest=out.max().item()), {'epoch': epoch})",
        "print(both['largest'])  # shown",
    ),
    "the last few": (
        "last = defaultdict(lambda: deque(maxlen=3))\n",
        "last['a'].append(out.max().item())",
        "for name, values in last.items():\n        print(name, sum(values) / len(values))  # shown",
    ),
    "a counter": (
        "counter = Counter()\n",
        "counter.update(a=out.max().item())",
        "print(counter.most_common())  # shown",
    ),
    "a sum by functools": (
        "values = []\n",
        "values.append(out.max().item())",
        "print(functools.reduce(operator.add, values))  # shown",
    ),
    "a generator": (
        "def average():\n    total = 0.0\n    while True:\n        total += yield total\n"
        "average = average()\nnext(average)\n",
        "mean = average.send(out.max().item())",
        "print(mean)  # shown",
    ),
    "a summary of a tracker": (
        "run = wandb.init()\n",
        "run.summary['largest'] = out.max().item()  # shown",
        "run.summary['epoch'] = epoch",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_figure_is_listed_where_it_is_shown(way: str, tmp_path: Path) -> None:
    start, step, end = WAYS[way]
    script = SCRIPT.replace("START\n", start).replace("STEP", step).replace("END", end)
    result = conversion(tmp_path, script)
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "# shown" in line]
    listed = [finding for finding in result.listed if finding.message.startswith("rank 0's share")]
    assert [finding.place.line for finding in listed] == lines


def test_a_loss_that_another_object_scales_for_its_gradients_is_not_shown(tmp_path: Path) -> None:
    text = SCRIPT.replace("START", "from apex.fp16_optimizer import Scaled\noptimizer = Scaled(optimizer)")
    text = text.replace("loss.backward()", "optimizer.backward(loss)").replace("        STEP\n    END\n", "")
    assert "optimizer.backward(loss)" in "".join(file.text for file in conversion(tmp_path, text).files)

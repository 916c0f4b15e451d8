"""Evaluations are shared out where all that they add up is known, and their figures are those of one process."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from verify.projects.launch import Launcher

from retrofit.cli import main
from retrofit.training import read_project
from retrofit.training.evaluation import LIST

SCRIPT = '''\
import json
import os

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm


class AverageMeter(object):
    """Computes and stores the average and current value"""
    def __init__(self):
        self.reset()

    def reset(self):
        self.val = 0
        self.avg = 0
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


class Confusion(object):
    def __init__(self, size):
        self.size = size
        self.matrix = np.zeros((size, size))

    def add(self, true, pred):
        if len(true) == 0:
            return
        self.matrix += np.bincount(self.size * true + pred, minlength=self.size ** 2).reshape(self.matrix.shape)

    def accuracy(self):
        return np.trace(self.matrix) / self.matrix.sum()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
criterion = nn.CrossEntropyLoss()
data = TensorDataset(torch.randn(50, 4), torch.randint(0, 3, (50,)))
train_loader = DataLoader(data, 10, shuffle=True)
val_loader = DataLoader(data, 7)


def evaluate(model, loader):
EVALUATION

result = evaluate(model, val_loader)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    evaluate(model, val_loader)
json.dump(result, open('result.json', 'w'))
'''
SHARED = {
    "sums": """
        model.eval()
        loss, hits, n = 0.0, 0, torch.zeros(3)
        with torch.no_grad():
            for x, y in loader:
                out = model(x)
                loss += criterion(out, y).item()
                hits = hits + (out.argmax(1) == y).sum()
                n += torch.bincount(y, minlength=3)
        return [loss / len(loader), hits.item() / len(loader.dataset), n.tolist()]
    """,
    "lists": """
        model.eval()
        scores, truths = [], []
        with torch.no_grad():
            for step, (x, y) in tqdm(enumerate(loader), total=len(loader)):
                x = x * 1.0
                scores.append(model(x).numpy())
                truths.append(y)
        return [np.concatenate(scores).tolist(), torch.cat(truths).tolist()]
    """,
    "meters": """
        losses, top1, clock = AverageMeter(), AverageMeter(), AverageMeter()
        model.train(False)
        bar = tqdm(loader)
        import time
        end = time.time()
        for i, (x, y) in enumerate(bar):
            with torch.no_grad():
                out = model(x)
            losses.update(criterion(out, y).item(), x.size(0))
            top1.update((out.argmax(1) == y).float().mean().item(), len(x))
            clock.update(time.time() - end)
            end = time.time()
            bar.set_postfix({'loss': losses.avg})
            if i % 3 == 0:
                print('{0}/{1} {top1.val} ({top1.avg})'.format(i, len(loader), top1=top1))
        print('top {top1.avg:.3f}'.format(top1=top1))
        return [losses.avg, top1.sum, top1.count]
    """,
    "dictionary_of_meters": """
        meters = {'loss': AverageMeter(), 'acc': AverageMeter()}
        model.eval()
        with torch.no_grad():
            pbar = tqdm(total=len(loader))
            for x, y in loader:
                out = model(x)
                meters['loss'].update(criterion(out, y).item(), x.size(0))
                meters['acc'].update((out.argmax(1) == y).float().mean().item(), x.size(0))
                shown = dict(loss=meters['loss'].avg)
                pbar.set_postfix(shown)
                pbar.update(1)
            pbar.close()
        return [meters['loss'].avg, meters['acc'].avg]
    """,
    "confusion_matrix": """
        model.eval()
        confusion = Confusion(3)
        per_class = np.zeros(3)
        with torch.no_grad():
            for x, y in loader:
                pred = model(x).argmax(1)
                confusion.add(y.numpy(), pred.numpy())
                for label in y.tolist():
                    per_class[label] += 1
        return [confusion.accuracy(), confusion.matrix.tolist(), per_class.tolist()]
    """,
}
# A function of the project runs the model for the loop.
HELPERS = {
    "of a module": ("predict(model, x)", "def predict(net, x):\n    return net(x)\n"),
    "without gradients": ("predict(x)", "@torch.no_grad()\ndef predict(x):\n    return model(x)\n"),
    "a class": (
        "Predictor(model).of((x, None))",
        "class Predictor:\n"
        "    def __init__(self, net):\n"
        "        self.net = net\n\n"
        "    def of(self, batch):\n"
        "        x, _ = batch\n\n"
        "        def run():\n"
        "            return self.net(x)\n"
        "        return run()\n",
    ),
    "two deep": ("outer(x)", "def inner(x):\n    return model(x)\n\n\ndef outer(x):\n    return inner(x)\n"),
    "a lambda": ("predict(x)", "predict = lambda x: model(x)\n"),
}
BY_HELPER = """
    model.eval()
    losses = []
    with torch.no_grad():
        for x, y in loader:
            out = CALL
            losses.append(criterion(out, y).item())
    return [float(np.average(losses))]
"""
NOT_SHARED = {
    "the model runs with gradients": """
        model.eval()
        total = 0
        for x, y in loader:
            total += model(x).sum().item()
        return total
    """,
    "model.eval() was not found": """
        total = 0
        with torch.no_grad():
            for x, y in loader:
                total += model(x).sum().item()
        return total
    """,
    "line {line} keeps something of one batch": """
        model.eval()
        best = 0
        with torch.no_grad():
            for x, y in loader:
                best = max(best, model(x).sum().item())  # here
        return best
    """,
    "line {line} depends on the number of the batch": """
        model.eval()
        total = 0
        with torch.no_grad():
            for i, (x, y) in enumerate(loader):
                total += i * model(x).sum().item()  # here
        return total
    """,
    "x, of the last batch, is read again in line {line}": """
        model.eval()
        total = 0
        with torch.no_grad():
            for x, y in loader:
                total += model(x).sum().item()
        return [total, len(x)]  # here
    """,
    "total does not start from zero": """
        model.eval()
        total = 1e-5
        with torch.no_grad():
            for x, y in loader:
                total += model(x).sum().item()
        return total
    """,
    "total is not set again before it": """
        model.eval()
        total = 0
        for number in range(2):
            with torch.no_grad():
                for x, y in loader:
                    total += model(x).sum().item()
        return total
    """,
    "line {line} does not append one entry per batch": """
        model.eval()
        scores = []
        with torch.no_grad():
            for x, y in loader:
                if len(x) > 3:
                    scores.append(model(x).sum().item())  # here
        return scores
    """,
    "line {line} reads what the batches before": """
        model.eval()
        total = 0
        with torch.no_grad():
            for x, y in loader:
                total += model(x).sum().item()
                if total > 5:  # here
                    break
        return total
    """,
    "train.py:{line}:17 writes something for each batch": """
        model.eval()
        total = 0
        with torch.no_grad():
            for x, y in loader:
                a = torch.save(x, 'x.pt')  # here
                total += model(x).sum().item()
        return total
    """,
    "line {line} reads more of meter than what it adds up": """
        model.eval()
        meter = AverageMeter()
        with torch.no_grad():
            for x, y in loader:
                meter.update(model(x).sum().item())
        return [meter.avg, meter.val]  # here
    """,
}


def project_with(folder: Path, evaluation: str) -> Path:
    folder.mkdir(exist_ok=True)
    body = textwrap.indent(textwrap.dedent(evaluation).strip("\n"), "    ")
    (folder / "train.py").write_text(SCRIPT.replace("EVALUATION", body))
    return folder


def flat(values: Any) -> list[float]:
    return [number for value in values for number in flat(value)] if isinstance(values, list) else [values]


@pytest.mark.parametrize("name", SHARED)
def test_figures_equal_those_of_one_process(name: str, tmp_path: Path, launcher: Launcher) -> None:
    original, folder = project_with(tmp_path / "a", SHARED[name]), project_with(tmp_path / "b", SHARED[name])
    assert main(["convert", str(folder / "train.py"), "--write"]) == 0
    assert "rd.share_batches(loader)" in (folder / "train.py").read_text()
    assert launcher.run(original, "train.py", [])["statuses"] == [0]
    alone = json.loads((original / "result.json").read_text())
    for world_size in (1, 2, 3):
        run = launcher.run(folder, "train.py", [], world_size=world_size)
        assert run["statuses"] == [0] * world_size, run["outputs"]
        together = json.loads((folder / "result.json").read_text())
        assert together == alone if world_size == 1 else flat(together) == pytest.approx(flat(alone), rel=1e-12)


@pytest.mark.parametrize("name", HELPERS)
def test_a_model_that_a_function_runs_is_evaluated(name: str, tmp_path: Path) -> None:
    call, helper = HELPERS[name]
    evaluation = BY_HELPER if name != "without gradients" else BY_HELPER.replace("with torch.no_grad():", "if True:")
    script = project_with(tmp_path, evaluation.replace("CALL", call)) / "train.py"
    script.write_text(script.read_text().replace("def evaluate(", helper + "\n\ndef evaluate("))
    (found,) = read_project(script).evaluations
    assert not found.reason and [accumulator.kind for accumulator in found.accumulators] == [LIST]


@pytest.mark.parametrize("reason", NOT_SHARED)
def test_an_evaluation_that_cannot_be_sharded_says_why(reason: str, tmp_path: Path) -> None:
    folder = project_with(tmp_path / "a", NOT_SHARED[reason])
    lines = (folder / "train.py").read_text().splitlines()
    here = next((number for number, line in enumerate(lines, start=1) if line.endswith("# here")), 0)
    (evaluation,) = read_project(folder / "train.py").evaluations
    assert evaluation.reason.startswith(reason.format(line=here)) and not evaluation.accumulators

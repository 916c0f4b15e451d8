"""Figures of a loss that is a sum over the batch: reduced with the count by which it is divided, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Summed(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.CrossEntropyLoss(reduction="sum", ignore_index=0)

    def forward(self, outputs, targets):
        loss = self.base(outputs.view(-1, 9), targets.view(-1))
        return loss, (targets != 0).sum().item()


METRIC


torch.manual_seed(0)
data = TensorDataset(torch.randn(22, 3, 4), torch.randint(0, 9, (22, 3)))
train_loader, val_loader = DataLoader(data, 4), DataLoader(data, 4)
model, criterion, metric = nn.Linear(4, 9), Summed(), Hits()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)


def run_epoch(loader, mode):
    losses, counts, hits = [], [], []
    for x, y in loader:
        outputs = model(x)
        loss, count = criterion(outputs, y)
        if mode == "train":
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        counts.append(count)
        hits.append(metric(outputs, y))
    return sum(losses) / sum(counts), sum(hits) / sum(counts)


for epoch in range(2):
    print(*run_epoch(train_loader, "train"))
    print(*run_epoch(val_loader, "val"))
print(run_epoch(val_loader, "val")[0])
"""
IN_FORWARD = """class Hits(nn.Module):
    def forward(self, outputs, targets):
        hits = outputs.argmax(2) == targets
        hits.masked_fill_(targets == 0, 0)
        return hits.sum().item()"""
METRICS = {
    "a module": IN_FORWARD,
    "of a setting": IN_FORWARD.replace("== 0, 0)", "== self.pad, 0)").replace(
        "    def forward",
        "    def __init__(self, pad=0):\n        super().__init__()\n        self.pad = pad\n\n    def forward",
    ),
    "a layer without weights": IN_FORWARD.replace("outputs.argmax(2)", "self.layer(outputs).argmax(2)").replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Softmax(2)\n\n    def forward",
    ),
    "another method": IN_FORWARD.replace("outputs.argmax(2) ==", "self.chosen(outputs) ==")
    + "\n\n    def chosen(self, outputs):\n        return outputs.argmax(2)",
    "a plain class": IN_FORWARD.replace("(nn.Module)", "").replace("forward", "__call__"),
}
OF_ANOTHER_MODEL = IN_FORWARD.replace("outputs.argmax(2)", "self.layer(outputs).argmax(2)").replace(
    "    def forward",
    "    def __init__(self):\n        super().__init__()\n        self.layer = nn.Linear(9, 9)\n\n    def forward",
)
OPAQUE = """\
import tokens
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(22, 3, 4), torch.randint(0, 9, (22, 3)))
loader = DataLoader(data, 4, shuffle=True)
model = nn.Linear(4, 9)
criterion = nn.CrossEntropyLoss(reduction="sum")
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(2):
    total, count = 0.0, 0
    for x, y in loader:
        loss = criterion(model(x).view(-1, 9), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        FIGURE
    print(total / count)
"""
OWN = {
    "added up": "total += loss.item(); count += tokens.count(y)",
    "at once": "print(loss.item() / tokens.count(y))",
    "in a name": "total += float(loss); count = count + tokens.count(y)",
    "of a list": "total += loss.item(); count += len(tokens.of(y))",
    "formatted": "total += loss.item(); count += tokens.count(y); print(f'{total / count:.3f}')",
}


@pytest.mark.parametrize("form", METRICS)
def test_a_metric_without_weights_is_followed(tmp_path: Path, form: str) -> None:
    lines = converted(tmp_path, SCRIPT.replace("METRIC", METRICS[form]))
    assert "losses.append(rd.reduce_total(loss).item())" in lines
    assert "counts.append(rd.reduce_total(count))" in lines


def test_what_another_model_gives_is_not_followed(tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT.replace("METRIC", OF_ANOTHER_MODEL))
    assert "reduce_" not in result.files[0].text
    assert [finding.message.partition(":")[0] for finding in result.listed] == ["rank 0's share"] * 3


@pytest.mark.parametrize("form", OWN)
def test_a_sum_stays_of_its_rank_with_what_it_is_divided_by(tmp_path: Path, form: str) -> None:
    result = conversion(tmp_path, OPAQUE.replace("FIGURE", OWN[form]))
    assert "reduce_" not in result.files[0].text
    assert result.listed and all("rank 0's share" in finding.message for finding in result.listed)


def test_a_sum_after_the_batches_is_that_of_the_last(tmp_path: Path) -> None:
    script = OPAQUE.replace("FIGURE", "pass").replace("total / count", "loss.item()")
    assert "print(rd.loss.reduce_summed_loss(loss).item())" in converted(tmp_path, script)


@pytest.mark.usefixtures("forked_python")
def test_two_processes_have_the_figures_of_one(tmp_path: Path) -> None:
    script = SCRIPT.replace("METRIC", METRICS["of a setting"])
    write_converted(tmp_path, conversion(tmp_path, script))
    (tmp_path / "before.py").write_text(script)
    environment = os.environ | {"RETROFIT_BATCH": "global", "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    one, two = (
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
        for command in ([sys.executable, "before.py"], torchrun)
    )
    figures = [
        [float(word) for line in out.splitlines() if line[:1].isdigit() for word in line.split()] for out in (one, two)
    ]
    assert figures[1] == pytest.approx(figures[0], rel=1e-5)

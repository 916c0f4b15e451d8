"""What squeeze() leaves of a batch keeps the axis of the samples in a process that has one row of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(6, 3), torch.randint(0, 2, (6, 1))), 4)
model = nn.Linear(3, 2)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        LINES
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
LOSS = "loss = F.cross_entropy(model(x), y.view(-1))"
KEPT = {
    "labels": ("loss = F.cross_entropy(model(x), y.squeeze())", "rd.data.squeeze_rows(y)"),
    "a function": ("loss = F.cross_entropy(model(x), torch.squeeze(y))", "rd.data.squeeze_rows(y)"),
    "outputs": ("loss = model(x)[:, :1].squeeze().pow(2).mean()", "rd.data.squeeze_rows(model(x)[:, :1])"),
    "in the middle": ("loss = F.cross_entropy(model(x), y.squeeze().long())", "rd.data.squeeze_rows(y).long()"),
    "in a mean of all ranks": (
        "out = model(x)[:, :1]\n        loss = (out.squeeze() - out.squeeze().mean()).pow(2).mean()",
        "(rd.data.squeeze_rows(out) - rd.loss.batch_mean(rd.data.squeeze_rows(out).mean()))",
    ),
    "entries of a split": (
        "parts = model(x).reshape((x.size(0), 2, -1)).split(1, 1)\n        loss = 0\n        for i in range(2):\n"
        "            loss += parts[i].squeeze().pow(2).mean()",
        "rd.data.squeeze_rows(parts[i]).pow(2)",
    ),
    "for a figure": (
        LOSS + "\n        right = y.cpu().data.squeeze().numpy()\n        print(len(right))",
        "rd.data.squeeze_rows(y.cpu().data).numpy()",
    ),
    "predictions": (
        LOSS + "\n        found = model(x).argmax(1, keepdim=True).squeeze().tolist()\n        print(len(found))",
        "rd.data.squeeze_rows(model(x).argmax(1, keepdim=True)).tolist()",
    ),
}
OTHER = {
    "an axis": "loss = F.cross_entropy(model(x), y.squeeze(1))",
    "one sample": LOSS + "\n        first = x[0].detach().squeeze()",
    "each sample": LOSS + "\n        for i in range(len(x)):\n            print(x[i].squeeze())",
    "each of a loop": LOSS + "\n        for one in x:\n            print(one.squeeze())",
    "a number": LOSS + "\n        shown = loss.detach().squeeze()",
}


@pytest.mark.parametrize("form", KEPT)
def test_the_rows_are_kept(form: str, tmp_path: Path) -> None:
    lines, expected = KEPT[form]
    text = "\n".join(converted(tmp_path, SCRIPT.replace("LINES", lines)))
    assert expected in text


@pytest.mark.parametrize("form", OTHER)
def test_what_has_no_rows_or_names_the_axis_is_left(form: str, tmp_path: Path) -> None:
    planned = conversion(tmp_path, SCRIPT.replace("LINES", OTHER[form]))
    assert "squeeze_rows" not in planned.files[0].text


def test_batches_that_are_all_whole_are_left(tmp_path: Path) -> None:
    script = SCRIPT.replace("LINES", KEPT["labels"][0]).replace("(6, 1))), 4)", "(6, 1))), 4, drop_last=True)")
    assert "y.squeeze()" in conversion(tmp_path, script).files[0].text


def test_a_process_with_one_row_trains_as_one_process_does(launcher: Launcher, tmp_path: Path) -> None:
    lines = KEPT["labels"][0] + "\n        print(len(y.cpu().squeeze()))"
    script = SCRIPT.replace("LINES", lines)
    saved = []
    for name, world_size in (("original", 1), ("converted", 1), ("converted", 2)):
        folder = tmp_path / f"{name}_{world_size}"
        folder.mkdir()
        text = script if name == "original" else conversion(folder, script).files[0].text
        (folder / "train.py").write_text(text)
        if name == "converted":
            add_runtime(folder)
        result = launcher.run(folder, "train.py", [], world_size, RETROFIT_BATCH="global")
        assert result["statuses"] == [0] * world_size, result["outputs"]
        saved.append(torch.load(folder / "model.pt"))
    for state in saved[1:]:
        assert all(torch.allclose(value, saved[0][name], atol=1e-6) for name, value in state.items())

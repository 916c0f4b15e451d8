"""A step for each entry of a batch of a loader is refused: processes may have different numbers of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.randn(64, 6), torch.randn(64, 1))


def groups(samples):
    samples.sort(key=lambda sample: sample[0][0].item())
    parts = [samples[i : i + 4] for i in range(0, len(samples), 4)]
    return [(torch.stack([a for a, _ in part]), torch.stack([b for _, b in part])) for part in parts]


loader = DataLoader(data, batch_size=16, shuffle=True, collate_fn=groups)
model = nn.Linear(6, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step():
    optimizer.step()


"""
STEP = """\
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
REFUSED = {
    "next to others": "for batches in loader:\n    print(len(batches))\n    for x, y in batches:\n" + STEP,
    "left early": "for batches in loader:\n    for x, y in batches:\n"
    + STEP
    + "        if loss < 0:\n            break\n",
    "by number": "for batches in loader:\n    for i in range(len(batches)):\n        x, y = batches[i]\n" + STEP,
    "numbered": "for n, batches in enumerate(tqdm(loader)):\n    for m, (x, y) in enumerate(batches):\n" + STEP,
    "bar in a variable": "for n, batches in enumerate(loader):\n    bar = tqdm(batches)\n    for x, y in bar:\n" + STEP,
    "in a function": "for batches in loader:\n    print()\n    for x, y in batches:\n"
    + STEP.replace("optimizer.step()", "step()"),
}
CONVERTED = {
    "a step for all": "for batches in loader:\n    optimizer.zero_grad()\n    for x, y in batches:\n"
    "        (nn.functional.mse_loss(model(x), y) / 4).backward()\n    optimizer.step()\n",
    "a number of steps": "for x, y in DataLoader(data, 8):\n    for _ in range(3):\n" + STEP,
    "views": "for views, y in DataLoader(data, 8):\n    for x in (views, -views):\n" + STEP,
}


@pytest.mark.parametrize("loop", REFUSED)
def test_steps_in_a_batch_are_refused(loop: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, HEAD + REFUSED[loop]).refusals
    assert refusal.kind == "steps-in-batch" and "each entry of batches" in (refusal.refusal or "")


@pytest.mark.parametrize("loop", CONVERTED)
def test_other_loops_in_a_batch_are_not(loop: str, tmp_path: Path) -> None:
    assert not conversion(tmp_path, HEAD + CONVERTED[loop]).refusals


ROWS = {
    "zip of a batch": "for batch in DataLoader(data, 8):\n    for x, y in zip(*batch):\n",
    "zip of parts": "for xs, ys in DataLoader(data, 8):\n    for x, y in zip(xs, ys):\n",
    "number of rows": "for xs, ys in DataLoader(data, 8):\n    for i in range(xs.size(0)):\n"
    "        x, y = xs[i], ys[i]\n",
    "a variable": "for xs, ys in DataLoader(data, 8):\n    n, _ = xs.shape\n    for i in range(n):\n"
    "        x, y = xs[i], ys[i]\n",
    "rows of a part": "for batch in DataLoader(data, 8):\n    for i in range(len(batch[0])):\n"
    "        x, y = batch[0][i], batch[1][i]\n",
    "in chunks": "for xs, ys in DataLoader(data, 8):\n    for i in range(0, xs.shape[0], 2):\n"
    "        x, y = xs[i : i + 2], ys[i : i + 2]\n",
}


@pytest.mark.parametrize("loop", ROWS)
def test_steps_for_rows_of_a_batch_are_refused(loop: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, HEAD + ROWS[loop] + STEP).refusals
    assert refusal.kind == "steps-in-batch"


IN_FUNCTIONS = {
    "zip of a batch": ("batch", "x, y in zip(*batch)", "fit(batch)"),
    "number of rows": ("batch", "i in range(len(batch[0]))", "fit(batch)"),
    "parts": ("xs, ys", "x, y in zip(xs, ys)", "fit(batch[0], ys=batch[1])"),
    "rows of a part": ("xs, ys", "i in range(xs.size(0))", "fit(*batch)"),
}


@pytest.mark.parametrize("form", IN_FUNCTIONS)
def test_steps_for_rows_in_a_function_are_refused(form: str, tmp_path: Path) -> None:
    given, entries, call = IN_FUNCTIONS[form]
    parts = "batch" if given == "batch" else "(xs, ys)"
    rows = f"        x, y = {parts}[0][i], {parts}[1][i]\n" if entries.startswith("i ") else ""
    function = f"def fit({given}):\n    for {entries}:\n{rows}{STEP}\n\n"
    caller = f"def once(batch):\n    {call}\n\n\nfor batch in DataLoader(data, 8):\n    once(batch)\n"
    (refusal,) = conversion(tmp_path, HEAD + function + caller).refusals
    assert refusal.kind == "steps-in-batch"


def test_steps_along_another_dimension_are_converted(tmp_path: Path) -> None:
    loop = "for xs, ys in DataLoader(data, 8):\n    for i in range(xs.size(1)):\n        x, y = xs * i, ys\n"
    assert not conversion(tmp_path, HEAD + loop + STEP).refusals


def test_batches_of_a_list_go_to_the_ranks_in_turn(tmp_path: Path, launcher: Launcher) -> None:
    script = HEAD.replace("data =", "torch.manual_seed(0)\ndata =").replace("shuffle=True", "shuffle=False")
    script += "last = []\nfor epoch in range(2):\n    for batches in loader:\n        for x, y in batches:\n"
    script += STEP.replace("        ", "            ") + "            last.append(loss.item())\n"
    script += "print('shown', sum(last[-5:]))\n"
    line = "for batches in rd.distribute_loader([(x, y)] for batches in loader for (x, y) in batches):"
    assert line in converted(tmp_path, script)
    (tmp_path / "run").mkdir()
    trains_as_one(tmp_path / "run", script, launcher)


SLICED = {
    "by numbers": "for xs, ys in DataLoader(data, 16):\n    for i in range(0, 16, 4):\n"
    "        x, y = xs[i : i + 4], ys[i : i + 4]\n",
    "by turns": "for xs, ys in DataLoader(data, 16):\n    for i in range(4):\n"
    "        x, y = xs[i * 4 : (i + 1) * 4], ys[i * 4 : (i + 1) * 4]\n",
    "split": "for xs, ys in DataLoader(data, 16):\n    for x, y in zip(xs.split(4), ys.split(4)):\n",
    "split by torch": "for xs, ys in DataLoader(data, 16):\n    for x in torch.split(xs, 4):\n"
    "        y = ys[: len(x)]\n",
    "chunks": "for xs, ys in DataLoader(data, 16):\n    for x, y in zip(xs.chunk(4), ys.chunk(4)):\n",
}


@pytest.mark.parametrize("loop", SLICED)
def test_a_step_for_each_part_of_a_batch_is_refused(loop: str, tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, HEAD + SLICED[loop] + STEP).refusals
    assert refusal.kind == "steps-in-batch"


def test_parts_that_are_cut_by_numbers_for_one_step_are_listed(tmp_path: Path) -> None:
    loop = "for xs, ys in DataLoader(data, 16):\n    optimizer.zero_grad()\n    for i in range(ENDS):\n"
    loop += "        nn.functional.mse_loss(model(xs[i : i + 4]), ys[i : i + 4]).backward()\n    optimizer.step()\n"
    listed = conversion(tmp_path, HEAD + loop.replace("ENDS", "0, 16, 4")).findings
    assert {f.message.partition(" takes")[0] for f in listed if f.code == "RF309"} == {"xs[i:i + 4]", "ys[i:i + 4]"}
    others = conversion(tmp_path, HEAD + loop.replace("ENDS", "0, len(xs), 4")).findings
    assert not any(finding.code == "RF309" for finding in others)

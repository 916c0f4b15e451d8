"""Numbers of steps of an epoch that are only shown: several processes that keep the batch size make a part of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.additions_of import write_converted
from convert.conversion import conversion
from verify.projects.launch import Launcher

SCRIPT = """\
import argparse
import logging
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()
rows = 64
inputs, labels = torch.randn(rows, 4), torch.randint(0, 3, (rows,))
data = TensorDataset(inputs, labels)
n_train = int(0.75 * len(data))
n_val = len(data) - n_train
part, held = random_split(data, [n_train, n_val])
loader = DataLoader(TRAINED, batch_size=args.batch_size, shuffle=True)
held_loader = DataLoader(held, batch_size=args.batch_size)
model = nn.Linear(4, 3)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter()


def train(epoch, n):
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        SHOWN


BEFORE
for epoch in range(2):
    train(epoch, COUNT)
    with torch.no_grad():
        hits = sum((model(x).argmax(1) == y).sum().item() for x, y in held_loader)
"""
SIZE = "args.batch_size"
OF_ALL = "rd.loss.global_batch(args.batch_size)"


def script_of(count: str, shown: str = "pass", before: str = "", trained: str = "data") -> str:
    script = SCRIPT.replace("COUNT", count).replace("SHOWN", shown)
    return script.replace("BEFORE", before).replace("TRAINED", trained)


@pytest.mark.parametrize(
    "shown",
    [
        "print(f'Batch {i + 1}/{n}')",
        "print('Batch {}/{}'.format(i + 1, n))",
        "logging.info('%d of %d', i, n)",
        "writer.add_scalar('loss', loss.item(), epoch * n + i)",
        "print('left', n - i)",
    ],
)
def test_a_number_that_is_handed_on_is_that_of_all_ranks(shown: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of("len(data) // args.batch_size", shown))
    assert not result.refusals and not result.listed
    assert f"train(epoch, len(data) // {OF_ALL})\n" in result.files[0].text


@pytest.mark.parametrize(
    "count",
    [
        "len(data) // args.batch_size",
        "math.ceil(len(data) / args.batch_size)",
        "math.ceil(rows / float(args.batch_size))",
        "len(loader.dataset) // args.batch_size + 1",
        "(inputs.shape[0] + args.batch_size - 1) // args.batch_size",
        "labels.size(0) // args.batch_size",
        "2 * (len(labels) // args.batch_size)",
    ],
)
@pytest.mark.parametrize("before", ["print('steps', STEPS)", "steps = STEPS\nbar = tqdm(total=steps)"])
def test_the_number_of_a_training_set_is_that_of_all_ranks(count: str, before: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of("0", before=before.replace("STEPS", count)))
    assert not result.refusals and not result.listed
    text = result.files[0].text
    assert count.replace(SIZE, OF_ALL) in text or count.replace(SIZE, "global_batch_size") in text


def test_of_a_split_the_part_that_is_trained_on_counts(tmp_path: Path) -> None:
    counts = "print(n_train // args.batch_size)\nprint(n_val // args.batch_size, len(held) // args.batch_size)"
    text = conversion(tmp_path, script_of("0", before=counts, trained="part")).files[0].text
    assert f"print(n_train // {OF_ALL})\n" in text
    assert "print(n_val // args.batch_size, len(held) // args.batch_size)\n" in text


def test_a_size_that_is_written_as_a_number_counts_as_well(tmp_path: Path) -> None:
    script = script_of("0", before="print(len(data) // 8, 512 // 8)").replace(
        "batch_size=args.batch_size", "batch_size=8"
    )
    text = conversion(tmp_path, script).files[0].text
    assert "print(len(data) // rd.loss.global_batch(8), 512 // 8)\n" in text


@pytest.mark.parametrize("count", ["60000 // args.batch_size", "train_size // args.batch_size"])
def test_where_it_is_not_known_of_which_samples_it_is_listed(count: str, tmp_path: Path) -> None:
    before = f"train_size = int(input())\nprint({count})"
    result = conversion(tmp_path, script_of("0", before=before))
    (listed,) = result.listed
    assert count in listed.message and count in result.files[0].text


@pytest.mark.parametrize(
    "before",
    [
        "print(args, args.batch_size)",
        "rate = 0.1 / args.batch_size\nprint(rate)",
        "test_inputs = torch.randn(40, 4)\nprint(len(test_inputs) // args.batch_size)",
        "print(len(loader))",
        "width = 512 // args.batch_size",
    ],
)
def test_other_numbers_stay(before: str, tmp_path: Path) -> None:
    result = conversion(tmp_path, script_of("0", before=before))
    assert not result.refusals and not result.listed and "global_batch" not in result.files[0].text


def test_a_count_in_a_mean_and_in_a_text_is_changed_once(tmp_path: Path) -> None:
    before = "for x, y in loader:\n    loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
    before += "    print(len(data) // args.batch_size)\nprint(loss.item() / (len(data) / args.batch_size))"
    text = conversion(tmp_path, script_of("0", before=before)).files[0].text
    assert f"print(len(data) // {OF_ALL})" in text
    assert "(len(data) / rd.data.samples_per_step(args.batch_size))" in text


def test_two_processes_show_the_steps_that_they_make(tmp_path: Path, launcher: Launcher) -> None:
    script = script_of(
        "len(data) // args.batch_size", "steps.append(i)\n        print('shown', len(steps) / (epoch + 1), n)"
    )
    script = script.replace("from torch.utils.tensorboard import SummaryWriter\n", "").replace(
        "writer = SummaryWriter()\n", "steps = []\n"
    )
    write_converted(tmp_path, conversion(tmp_path, script.replace("from tqdm import tqdm\n", "")))
    run = launcher.run(tmp_path, "train.py", [], world_size=2)
    assert set(run["statuses"]) == {0}, run["outputs"]
    assert [line for line in run["outputs"][0].splitlines() if line.startswith("shown")][-1] == "shown 4.0 4"

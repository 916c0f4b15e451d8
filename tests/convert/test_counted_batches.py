"""What a script counts or times by the size of its batches is that of all processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

HEAD = """\
import random
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size, length = 4, 3
data = TensorDataset(torch.randn(16, 3), torch.randn(16, 1))
samples = [data[i] for i in range(16)]
loader = DataLoader(data, batch_size=batch_size)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
start = time.time()
"""
STEP = """\
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PARTS = {
    "pairs of the samples": "x, y = (torch.stack(part) for part in ([a[0] for a in batch], [a[1] for a in batch]))",
    "unzipped": "xs, ys = zip(*batch); x, y = torch.stack(xs), torch.stack(ys)",
    "a function": "x, y = collate(batch)",
    "unpacked": "x = torch.stack([a for a, _ in batch]); y = torch.stack([b for _, b in batch])",
}
COLLATE = """\
def collate(batch):
    return torch.stack([pair[0] for pair in batch]), torch.stack([pair[1] for pair in batch])


"""
SIZES = {
    "tokens / (time.time() - start)": "rd.loss.global_batch(tokens) / (time.time() - start)",
    "step * tokens": "step * rd.loss.global_batch(tokens)",
    "batch_size * length / 2.0": "rd.loss.global_batch(batch_size) * length / 2.0",
}


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize("drawn", ["DataLoader(data, batch_size, collate_fn=list)", "batches"])
def test_a_list_of_samples_has_as_many_entries_as_samples(drawn: str, parts: str, tmp_path: Path) -> None:
    batches = "batches = [samples[i : i + 4] for i in range(0, 16, 4)]\nrandom.shuffle(batches)\nseen = 0\n"
    loop = f"for batch in {drawn}:\n    {PARTS[parts]}\n{STEP}    seen += len(batch)\nprint(seen)\n"
    assert "seen += rd.reduce_total(len(batch))" in converted(tmp_path, HEAD + COLLATE + batches + loop)


def test_a_batch_of_tensors_has_as_many_entries_everywhere(tmp_path: Path) -> None:
    loop = f"for batch in loader:\n    x, y = [part.float() for part in batch]\n{STEP}    print(len(batch))\n"
    assert "print(len(batch))" in converted(tmp_path, HEAD + loop)


@pytest.mark.parametrize("length", ["length", "sample_rate", "generated", "worlds"])
@pytest.mark.parametrize("figure", SIZES)
def test_what_is_timed_or_counted_is_of_the_batch_of_all_processes(figure: str, length: str, tmp_path: Path) -> None:
    loop = f"for step, (x, y) in enumerate(loader):\n{STEP}    print({figure})\n"
    script = f"{HEAD}tokens = batch_size * length\n{loop}".replace("length", length)
    assert f"print({SIZES[figure].replace('length', length)})" in converted(tmp_path, script)


@pytest.mark.parametrize("rate", ["0.001 * batch_size", "base * batch_size"])
def test_a_rate_that_follows_the_batch_size_is_not_a_count(rate: str, tmp_path: Path) -> None:
    step = 'for group in optimizer.param_groups:\n        group["lr"] = scaled * (step + 1)'
    loop = f"for step, (x, y) in enumerate(loader):\n    {step}\n{STEP}"
    found = converted(tmp_path, f"{HEAD}base = 0.001\nscaled = {rate}\n{loop}")
    assert not [line for line in found if "global_batch" in line]


@pytest.mark.parametrize("base", ["0.1", "base", "args.lr"])
def test_a_rate_that_follows_the_samples_so_far_counts_those_of_all_processes(base: str, tmp_path: Path) -> None:
    options = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', type=float, default=0.1)\n"
        "args = parser.parse_args()\nbase = 0.1\ntokens = batch_size * length\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)\n"
    )
    step = f'for group in optimizer.param_groups:\n        group["lr"] = {base} * min(1.0, step * tokens / 1000)'
    loop = f"for step, (x, y) in enumerate(loader):\n    {step}\n{STEP}"
    assert "step * rd.loss.global_batch(tokens)" in "".join(converted(tmp_path, HEAD + options + loop))


def test_a_count_by_the_number_of_processes_is_not_multiplied_again(tmp_path: Path) -> None:
    tokens = 'import os\n\ntokens = batch_size * int(os.environ["WORLD_SIZE"])\n'
    loop = f"for step, (x, y) in enumerate(loader):\n{STEP}    print(step * tokens)\n"
    assert "print(step * tokens)" in converted(tmp_path, HEAD + tokens + loop)


EPOCH = """\
class Trainer:
    def __init__(self, args):
        self.args = args

    def fit(self, batches):
        bar, right, total = tqdm(enumerate(batches)), 0, 0.0
        for i, (x, y) in bar:
            out = model(x)
            loss = (out - y).pow(2).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            right += (out > y).sum().item()
        SHOWN


def test():
    right = 0
    with torch.no_grad():
        for x, y in held_out:
            right += (model(x) > y).sum().item()
    print("held out", right / (len(held_out) * batch_size))


held_out = DataLoader(data, batch_size=batch_size)
args = argparse.Namespace(size=batch_size)
for epoch in range(2):
    Trainer(args).fit(loader)
    test()
"""
SHOWN = {
    "print(right / (len(batches) * batch_size))": "print(right / (len(batches) * rd.loss.global_batch(batch_size)))",
    "print(total / (batch_size * len(loader)))": "print(total / (rd.loss.global_batch(batch_size) * len(loader)))",
    "n = len(bar) * batch_size; print(total / n)": "n = len(bar) * rd.loss.global_batch(batch_size); print(total / n)",
}


@pytest.mark.parametrize("shown", SHOWN)
def test_an_epoch_has_its_batches_times_their_size_over_all_ranks(shown: str, tmp_path: Path) -> None:
    head = HEAD.replace("import random\n", "import argparse\nimport random\n", 1).replace(
        "import torch\n", "import torch\nfrom tqdm import tqdm\n", 1
    )
    lines = converted(tmp_path, head + EPOCH.replace("SHOWN", shown))
    assert SHOWN[shown] in lines
    assert 'print("held out", right / (len(held_out) * batch_size))' in lines

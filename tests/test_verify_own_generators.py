"""`retrofit verify` on sound scripts that draw from generators of their own, in the loop and where batches are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 5), torch.randn(96, 1))
model = DistributedDataParallel(torch.nn.Linear(5, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(data)


CHANGE


def collate(items):
    x, y = (torch.stack(parts) for parts in zip(*items))
    return WHERE(x), y


loader = DataLoader(data, args.batch_size, sampler=sampler, collate_fn=collate if IN_COLLATE else None)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        (model(x if IN_COLLATE else change(x)) - y).pow(2).mean().backward()
        optimizer.step()
dist.destroy_process_group()
"""
CHANGES = {
    "noise": """
rng = np.random.default_rng(7 + rank)
def change(x):
    return x + torch.from_numpy(rng.normal(size=x.shape)).to(x.dtype)
""",
    "a weight": """
rng = np.random.RandomState(7 + rank)
def change(x):
    return x * rng.beta(0.4, 0.4)
""",
    "of Python": """
rng = random.Random(7 + rank)
def change(x):
    return torch.roll(x if rng.random() < 0.5 else -x, rng.randint(0, 4), 1)
""",
    "partners": """
rng = np.random.Generator(np.random.PCG64(7 + rank))
def change(x):
    return x + rng.uniform(0, 1) * x[torch.from_numpy(rng.permutation(len(x)))]
""",
}


def judged(tmp_path: Path, change: str, in_collate: bool) -> tuple[int, dict]:
    script = SCRIPT.replace("CHANGE", change.strip()).replace("IN_COLLATE", str(in_collate))
    (tmp_path / "train.py").write_text(script.replace("WHERE", "change" if in_collate else ""))
    return judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])


CASES = [f"{change}-{place}" for change in CHANGES for place in ("loop", "collate")]
FURTHER = ("noise-loop", "a weight-collate", "a weight-loop", "of Python-collate", "partners-loop")


@pytest.mark.parametrize("case", with_further(CASES, *FURTHER))
def test_numbers_of_an_own_generator_are_those_of_the_batch(tmp_path: Path, case: str) -> None:
    change, _, place = case.partition("-")
    status, report = judged(tmp_path, CHANGES[change], place == "collate")
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    verdicts = {verdict["check"]: verdict["status"] for verdict in report["verdicts"]}
    assert (status, verdicts["loss"], verdicts["parameters"]) == (0, "PASS", "PASS")


@pytest.mark.slow
def test_noise_that_is_the_same_on_all_ranks_is_found(tmp_path: Path) -> None:
    _, report = judged(tmp_path, CHANGES["noise"].replace(" + rank", ""), in_collate=False)
    failed = {verdict["check"]: verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
    assert failed == {"random_streams": "RF109"}


def test_a_number_for_each_sample_cannot_be_judged(tmp_path: Path) -> None:
    change = """
rng = random.Random(7 + rank)
def change(x):
    return torch.stack([row * rng.uniform(0.5, 1.5) for row in x])
"""
    _, report = judged(tmp_path, change, in_collate=True)
    verdicts = {verdict["check"]: verdict for verdict in report["verdicts"]}
    assert verdicts["loss"]["status"] == "NOT APPLICABLE"
    assert "random numbers that belong to no sample are drawn at train.py:" in verdicts["loss"]["summary"]


LAZY = """
class Noise:
    def __init__(self):
        self.rng = None

    def __call__(self, x):
        if self.rng is None:
            self.rng = MADE
        return x + DRAWN


class Noisy(torch.utils.data.Dataset):
    def __init__(self):
        self.noise = Noise()

    def __len__(self):
        return 96

    def __getitem__(self, index):
        return self.noise(torch.full((5,), index / 96)), torch.ones(1)


torch.manual_seed(7 + rank)
np.random.seed(7 + rank)
data = Noisy()
"""
MADE_WITH_THE_FIRST_SAMPLE = {
    "torch": ("torch.Generator().manual_seed(torch.initial_seed())", "torch.rand(5, generator=self.rng)"),
    "numpy": ("np.random.default_rng(np.random.randint(2**31))", "torch.from_numpy(self.rng.random(5)).to(x.dtype)"),
}


def write_lazy(folder: Path, made: str, drawn: str) -> None:
    data = LAZY.replace("MADE", made).replace("DRAWN", drawn)
    text = SCRIPT.replace("data = TensorDataset(torch.randn(96, 5), torch.randn(96, 1))\n", "").replace("CHANGE", "")
    text = text.replace("sampler = Dist", f"{data}\nsampler = Dist").replace("IN_COLLATE", "True")
    (folder / "train.py").write_text("import numpy as np\n" + text.replace("WHERE(x)", "x"))


@pytest.mark.parametrize("name", with_further(MADE_WITH_THE_FIRST_SAMPLE, "numpy"))
def test_a_generator_that_is_made_with_the_first_sample_is_the_data_sets_own(tmp_path: Path, name: str) -> None:
    write_lazy(tmp_path, *MADE_WITH_THE_FIRST_SAMPLE[name])
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 0, report["conclusion"]


def test_one_that_is_made_with_a_seed_for_all_ranks_is_found(tmp_path: Path) -> None:
    write_lazy(tmp_path, "torch.Generator().manual_seed(3)", "torch.rand(5, generator=self.rng)")
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 1 and list(report["causes"]) == ["RF109"], report["conclusion"]

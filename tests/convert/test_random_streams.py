"""Scripts in DDP whose processes draw the same random numbers, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion

from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

SCRIPT = """\
import argparse, os, random
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import transforms


def jitter(x):
    return x + torch.randn(2)


class Noisy(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {sample}


def seed_worker(worker):
    {in_worker}


def seed_all(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default={workers})
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed({first_seed})
model = DDP(nn.Sequential(nn.Linear(2, 2), {layer}))
{seeding}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = Noisy()
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 2, sampler=sampler, num_workers=args.workers{loading})
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x in loader:
        x = {change}
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
if rank == 0:
    torch.save({{"model": model.module.state_dict(), "rng": torch.get_rng_state()}}, "last.pt")
"""
DEFAULTS = {
    "sample": "torch.ones(2)", "in_worker": "pass", "workers": "0", "first_seed": "args.seed", "layer": "nn.ReLU()",
    "seeding": "pass", "loading": "", "change": "x",
}  # fmt: skip
APART = {"seeding": "torch.manual_seed(args.seed + rank)"}
CASES = [
    # The samples are changed in the dataset: by a function, by torchvision.
    (True, {"sample": "jitter(torch.ones(2))"}),
    (True, {"sample": "torch.ones(2) + torch.randn(2)", "workers": "4"}),
    (True, {"loading": ")\naugment = transforms.Compose([transforms.RandomHorizontalFlip()]"}),
    (False, {"sample": "jitter(torch.ones(2))", "seeding": "seed_all(args.seed + rank)"}),
    (True, {"sample": "jitter(torch.ones(2))", "seeding": "seed_all(args.seed)"}),
    # In the loop, or in a layer.
    (True, {"change": "x[torch.randperm(len(x))]"}),
    (False, {"layer": "nn.Dropout(0.0)"}),
    (False, {"change": "x + torch.randn_like(x)", **APART}),
    (False, {"change": "x * random.choice([1, 2])", "seeding": "random.seed(0)"}),
    (False, {}),
    # numpy and random: workers seed them from torch, a process without workers does not.
    (True, {"sample": "torch.ones(2) * np.random.uniform()", "seeding": "torch.manual_seed(rank)\nnp.random.seed(0)"}),
    (False, {"sample": "torch.ones(2) * np.random.uniform()", "seeding": "torch.manual_seed(rank)\nnp.random.seed(0)",
             "workers": "4"}),
    (False, {"sample": "torch.ones(2) * np.random.uniform()",
             "seeding": "torch.manual_seed(rank)\nnp.random.seed(rank)"}),
    # Workers that are seeded by hand.
    (True, {"sample": "torch.ones(2) * np.random.uniform()", **APART, "workers": "4",
            "in_worker": "np.random.seed(args.seed + worker)", "loading": ", worker_init_fn=seed_worker"}),
    (False, {"sample": "torch.ones(2) * np.random.uniform()", **APART, "workers": "4",
             "in_worker": "np.random.seed(args.seed + 9 * rank + worker)", "loading": ", worker_init_fn=seed_worker"}),
    (False, {"sample": "torch.ones(2) * np.random.uniform()", **APART, "workers": "4",
             "in_worker": "np.random.seed(torch.initial_seed() % 2**32)", "loading": ", worker_init_fn=seed_worker"}),
    # A random state that one process has saved.
    (True, {"layer": "nn.Dropout(0.1)", "seeding": "torch.manual_seed(rank)\n"
            "state = torch.load('last.pt', map_location='cpu')\ntorch.set_rng_state(state['rng'])"}),
    (False, {"layer": "nn.Dropout(0.1)", "seeding": "torch.manual_seed(rank)\n"
             "state = torch.load('last.pt', map_location='cpu')\ntorch.set_rng_state(state['rng'][rank])"}),
    (False, {"layer": "nn.Dropout(0.1)", "seeding": "torch.manual_seed(rank)\nstate = torch.get_rng_state()\n"
             "torch.set_rng_state(state)"}),
]  # fmt: skip


@pytest.mark.parametrize(("is_same", "parts"), CASES)
def test_one_random_stream_on_all_ranks(is_same: bool, parts: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(**DEFAULTS | parts))
    codes = {finding.code for finding in find_hazards(read_project(tmp_path / "train.py"))}
    assert codes == ({"RF109"} if is_same else set())


def test_seeds_of_the_parent_process_of_spawned_ranks_do_not_count(tmp_path: Path) -> None:
    text = SCRIPT.format(**DEFAULTS, **{}).replace("nn.ReLU()", "nn.Dropout(0.1)")
    head, body = text.split('dist.init_process_group("gloo")\n')
    lines = ['dist.init_process_group("gloo")', *body.replace("torch.manual_seed(args.seed)\n", "").splitlines()]
    worker = "def work(rank, args):\n" + "".join(f"    {line}\n" for line in lines)
    start = "torch.manual_seed(args.seed)\nif __name__ == '__main__':\n    main()\n"
    main = "def main():\n    torch.manual_seed(0)\n    torch.multiprocessing.spawn(work, (args,), 2)\n"
    start = "if __name__ == '__main__':\n    main()\n"
    (tmp_path / "train.py").write_text(head + worker + main + start)
    assert "RF109" not in {finding.code for finding in find_hazards(read_project(tmp_path / "train.py"))}


ONE_PROCESS = """\
import random
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 2), batch_size=4, shuffle=True)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
numbers = {made}
for x, y in loader:
    {step}
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
OWN_GENERATORS = {
    "torch": ("torch.Generator().manual_seed(5)", "x = x + torch.randn(x.shape, generator=numbers)"),
    "numpy": ("np.random.default_rng(5)", "x = x * torch.from_numpy(numbers.uniform(size=(len(x), 1))).float()"),
    "older numpy": ("np.random.RandomState(5)", "x = x + torch.from_numpy(numbers.randn(*x.shape)).float()"),
}
FOR_ALL_ROWS = {
    "one number": ("np.random.default_rng(5)", "x = x * numbers.uniform()"),
    "of the features": ("np.random.default_rng(5)", "x = x * torch.from_numpy(numbers.uniform(size=4)).float()"),
    "no seed": ("np.random.default_rng()", "x = x * torch.from_numpy(numbers.uniform(size=(len(x), 1))).float()"),
}


@pytest.mark.parametrize("kind", OWN_GENERATORS)
def test_a_seeded_generator_that_draws_for_samples_is_listed(kind: str, tmp_path: Path) -> None:
    made, step = OWN_GENERATORS[kind]
    result = conversion(tmp_path, ONE_PROCESS.format(made=made, step=step))
    (finding,) = [finding for finding in result.findings if finding.code == "RF109"]
    assert not finding.edits and "rd.get_rank()" in finding.help


@pytest.mark.parametrize("kind", FOR_ALL_ROWS)
def test_a_generator_that_draws_the_same_for_all_samples_is_not(kind: str, tmp_path: Path) -> None:
    made, step = FOR_ALL_ROWS[kind]
    findings = conversion(tmp_path, ONE_PROCESS.format(made=made, step=step)).findings
    assert "RF109" not in [finding.code for finding in findings]

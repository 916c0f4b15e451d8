"""Silent errors that TrainCheck's evaluation reproduces (arXiv 2506.14813), as far as they are of several processes.

Each is a small script of its own with the same mistake: a model that is moved after it is wrapped (pytorch#104336), a
wrapper that every other step goes by, and samples that all ranks draw with the same random numbers.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import judge

pytestmark = pytest.mark.usefixtures("forked_python")

START = """\
import os
import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(4)
np.random.seed(4)
x = torch.randn(64, 6)
data = TensorDataset(x, x.sum(1, keepdim=True))
net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1))
"""
MOVED = """
model = DistributedDataParallel(net) if world > 1 else net
# What .cpu() and .cuda() do to a model: its parameters are other objects afterwards.
torch.__future__.set_overwrite_module_params_on_conversion(MOVES)
model.double().float()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
sampler = DistributedSampler(data, world, rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(data, 8 // world, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""
PASSED_BY = """
wrapped = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
sampler = DistributedSampler(data, world, rank)
step = 0
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(data, 8 // world, sampler=sampler):
        model = net if step % 2 == EVERY else wrapped
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
        step += 1
"""
SAME_DRAWS = """

class Noisy(Dataset):
    def __len__(self):
        return len(data)

    def __getitem__(self, index):
        a, b = data[index]
        return a + torch.from_numpy(np.random.normal(0, 0.1, 6)).float(), b


model = DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(SEED)
np.random.seed(SEED)
sampler = DistributedSampler(data, world, rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(Noisy(), 8 // world, sampler=sampler, num_workers=2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(a), b).backward()
        optimizer.step()
"""
CASES = {
    "moved after wrapping": (MOVED, "MOVES", "True", "False", {"RF201", "RF211"}),
    "wrapper passed by": (PASSED_BY, "EVERY", "1", "2", {"RF201", "RF202"}),
    "same draws": (SAME_DRAWS, "SEED", "9", "9 + rank", {"RF109"}),
}


@pytest.mark.parametrize("name", with_further(CASES, "wrapper passed by", "same draws"))
def test_it_is_caught_and_the_sound_script_passes(name: str, tmp_path: Path) -> None:
    script, word, wrong, right, causes = CASES[name]
    for value in (wrong, right):
        (tmp_path / "train.py").write_text(START + script.replace(word, value))
        status, report = judge(tmp_path, [], [])
        found = {verdict["cause"] for verdict in report["verdicts"] if verdict["status"] == "FAIL"}
        assert (status, bool(found & causes)) == ((1, True) if value == wrong else (0, False)), report["conclusion"]

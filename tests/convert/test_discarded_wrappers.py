"""Scripts in DDP in which the wrapper is thrown away again: its variable is bound to the model inside."""

from __future__ import annotations

from pathlib import Path

import pytest

from retrofit.rules.registry import find_hazards
from retrofit.training import read_project

HEAD = """\
import copy, os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def restore(net, path):
    if os.path.exists(path):
        net.load_state_dict(torch.load(path, map_location="cpu"))
    return net


def rebuilt(net, path):
    fresh = nn.Linear(2, 2)
    fresh.load_state_dict(net.state_dict())
    return fresh


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)
dataset = torch.randn(8, 2)
"""
SCRIPT = """\
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, 2, sampler=sampler)
model = DDP(nn.Linear(2, 2))
{before}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    {in_epoch}
{after}
"""
TRAINER = """\
class Trainer:
    def __init__(self, net, path):
        self.rank = dist.get_rank()
        self.sampler = DistributedSampler(dataset)
        self.loader = DataLoader(dataset, 2, sampler=self.sampler)
        self.model = DDP(net)
        {in_init}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def resume(self, path):
        {in_resume}

    def save(self):
        {in_save}

    def train(self):
        {in_train}
        for epoch in range(2):
            self.sampler.set_epoch(epoch)
            for x in self.loader:
                loss = self.model(x).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            if self.rank == 0:
                self.save()


trainer = Trainer(nn.Linear(2, 2), "last.pt")
{between}
trainer.train()
{after}
"""
THROWN = "RF212"
SAVED = "torch.save(self.model.module.state_dict(), 'last.pt')"
SAVED_BARE = "torch.save(self.model.state_dict(), 'last.pt')"
# What is found; the slots of the script that are filled.
OF_SCRIPT = [
    ({THROWN}, {"before": "model = model.module"}),
    ({THROWN}, {"before": "model = restore(model.module, 'a.pt')"}),
    ({THROWN}, {"before": "model = rebuilt(model.module, 'a.pt')"}),
    ({THROWN}, {"before": "if os.path.exists('a.pt'):\n    model = restore(model.module, 'a.pt')"}),
    ({THROWN}, {"before": "model = model.module if hasattr(model, 'module') else model"}),
    ({THROWN}, {"in_epoch": "if epoch == 0:\n        model = restore(model.module, 'best.pt')"}),
    (set(), {"before": "restore(model.module, 'a.pt')\nraw_model = model.module"}),
    (set(), {"before": "raw_model = restore(model.module, 'a.pt')", "after": "print(raw_model.weight.shape)"}),
    (set(), {"after": "model = model.module\nif rank == 0:\n    torch.save(model.state_dict(), 'a.pt')"}),
    (set(), {"in_epoch": "raw = model.module\n    if rank == 0:\n        torch.save(raw.state_dict(), 'a.pt')"}),
    (set(), {"in_epoch": "model = restore(model.module, 'a.pt')\n    model = DDP(model)"}),
]  # fmt: skip
OF_TRAINER = [
    ({THROWN}, {"in_init": "self.model = restore(self.model.module, path)"}),
    ({THROWN}, {"in_init": "self.model = restore(self.model.module, path)", "in_save": SAVED_BARE}),
    ({THROWN}, {"in_init": "self.resume(path)", "in_resume": "self.model = restore(self.model.module, path)"}),
    ({THROWN}, {"in_init": "if os.path.exists(path):\n            self.resume(path)",
                "in_resume": "self.model = restore(self.model.module, path)", "in_save": SAVED_BARE}),
    ({THROWN}, {"between": "trainer.resume('a.pt')", "in_resume": "self.model = copy.deepcopy(self.model.module)"}),
    ({THROWN}, {"between": "trainer.model = restore(trainer.model.module, 'a.pt')"}),
    ({THROWN}, {"in_train": "self.model = self.model.module"}),
    ({THROWN}, {"in_save": "self.model = self.model.module\n        torch.save(self.model.state_dict(), 'last.pt')"}),
    (set(), {"in_save": SAVED}),
    (set(), {"in_init": "restore(self.model.module, path)", "in_save": SAVED}),
    (set(), {"in_init": "self.raw_model = restore(self.model.module, path)",
             "in_save": "torch.save(self.raw_model.state_dict(), 'last.pt')"}),
    (set(), {"in_init": "self.resume(path)", "in_resume": "self.model = DDP(restore(self.model.module, path))"}),
    (set(), {"after": "dist.barrier()\ntrainer.resume('best.pt')",
             "in_resume": "self.model = restore(self.model.module, path)"}),
    (set(), {"in_save": "model = self.model.module\n        torch.save(model.state_dict(), 'last.pt')"}),
]  # fmt: skip
CASES = [*((SCRIPT, *case) for case in OF_SCRIPT), *((TRAINER, *case) for case in OF_TRAINER)]
SLOTS = ("before", "in_epoch", "after", "in_init", "in_resume", "in_save", "in_train", "between")


@pytest.mark.parametrize(("script", "codes", "slots"), CASES)
def test_a_discarded_wrapper(script: str, codes: set[str], slots: dict[str, str], tmp_path: Path) -> None:
    text = HEAD + script.format(**{slot: slots.get(slot, "pass") for slot in SLOTS})
    (tmp_path / "train.py").write_text(text)
    assert {finding.code for finding in find_hazards(read_project(tmp_path / "train.py"))} == codes

"""A thread that draws the batches of all epochs ahead of the steps is followed, but for what its `collate_fn` draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from verify_command import judge
from verify_evidence import BATCH, failures, sound_runs

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import BatchDrawn, DrawnAhead, EpochOrder, IterationStart

SCRIPT = """\
import os
import queue
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, default_collate


def noisy(items):
    x, y = default_collate(items)
    return x * (1 + 0.1 * torch.rand(len(x), 1)), y


world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 6), torch.randint(0, 3, (32,)))
model = torch.nn.Linear(6, 3)
ddp = DistributedDataParallel(model) if world > 1 else model
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
torch.manual_seed(rank)
sampler = DistributedSampler(data) if world > 1 else None
loader = DataLoader(data, 8 // world, shuffle=sampler is None, sampler=sampler, collate_fn=noisy)
batches = queue.Queue()


def draw():
    for epoch in range(2):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for batch in loader:
            batches.put(batch)
        batches.put(None)


threading.Thread(target=draw, daemon=True).start()
for _ in range(2):
    for x, y in iter(batches.get, None):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
if world > 1:
    dist.destroy_process_group()
"""


@pytest.mark.usefixtures("forked_python")
def test_what_a_collate_function_draws_in_a_thread_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    status, report = judge(tmp_path, [], [])
    verdicts = {verdict["check"]: verdict for verdict in report["verdicts"]}
    assert status == 3, report["conclusion"]
    assert {name for name, verdict in verdicts.items() if verdict["status"] == "FAIL"} == set()
    assert "train.py:11 in noisy" in verdicts["loss"]["summary"]
    assert {verdicts[name]["status"] for name in ("shards", "global_batch", "reshuffle")} == {"PASS"}


def test_batches_that_a_thread_draws_before_the_first_step_are_those_of_all_steps():
    runs = sound_runs()
    for trace in runs["many"].ranks:
        drawn = [event for event in trace.events if isinstance(event, BatchDrawn) and event.iteration in (0, 2)]
        begins = [event for event in trace.events if isinstance(event, IterationStart) and event.grad_enabled]
        rest = [event for event in trace.events if event not in drawn and event is not begins[0]]
        orders = [event for event in rest if isinstance(event, EpochOrder) and event.iteration == 0]
        first = rest.index(orders[0])
        assert [begin.iteration for begin in begins] == [0, 2]
        second = [event for event in drawn if event.iteration == 2]
        place = next(i for i, event in enumerate(rest) if event is begins[1]) + 2
        rest[place:place] = second
        rest[first + 1 : first + 1] = [DrawnAhead(0), *(event for event in drawn if event.iteration == 0)]
        trace.events = [*rest[:first], begins[0], *rest[first:]]
        assert trace.rows_per_step == [BATCH // 2] * 4
    assert failures(run_checks(runs)) == {}

"""Errors of `retrofit verify` itself: the script continues, and the exit status is 4, never a FAIL of the script."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from further_cases import with_further
from verify_command import judge
from verify_evidence import copy_of, sound_runs

from retrofit.verify import checks
from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import ProcessExit, ScriptError, TraceError, event_of, line_of
from retrofit.verify.trace.randomness.draws import RowDraws
from retrofit.verify.trace.randomness.numpy_draws import by_rows
from retrofit.verify.trace.recorder import Recorder, is_of_tracer, own_errors_recorded
from retrofit.verify.verdict import exit_status, overall_status

ERROR = TraceError(ScriptError("KeyError", "'x'", "data/loaders.py:12 in _begin", "Traceback ..."))
SCRIPT = """\
import copy
import os
import pickle
from itertools import cycle, islice

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")


class Loader(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield [part.clone() for part in batch]


class Labels(TensorDataset):
    def __getitem__(self, index):
        if index == len(self) - 1:
            raise IndexError("the last one is never read")
        return super().__getitem__(index)


class Model(nn.Linear):
    BROKEN


class Sampler(DistributedSampler):
    def __iter__(self):
        return (index for index in super().__iter__() if index != len(self.dataset) - 1)


torch.manual_seed(0)
points = torch.randn(64, 6)
data = DATA(points, (points.sum(1) > 0).long())
sampler = (Sampler if DATA is Labels else DistributedSampler)(
    data, 2 if several else 1, dist.get_rank() if several else 0, seed=1
)
loader = LOADER(data, 8 if several else 16, sampler=sampler, num_workers=1)
loader = copy.copy(loader)
model = Model(6, 2)
if several:
    model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    next(iter(loader))
    first, second = iter(loader), iter(loader)
    assert LOADER is Loader or isinstance(first, _BaseDataLoaderIter)
    next(second)
    for x, y in first:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        torch.autograd.backward(part for part in [loss])
        optimizer.step()
pickle.dumps(data)
print("done")
"""
BROKEN = """\
def named_parameters(self, *args, **kwargs):
        if getattr(self, "is_called", False):
            raise LookupError("asked by a stranger")
        return super().named_parameters(*args, **kwargs)

    def forward(self, x):
        self.is_called = True
        return super().forward(x)"""


def script(data: str = "TensorDataset", loader: str = "DataLoader", broken: str = "pass") -> str:
    return SCRIPT.replace("DATA", data).replace("LOADER", loader).replace("BROKEN", broken)


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("loader", with_further(["DataLoader", "Loader"], "Loader"))
def test_loaders_in_every_form_are_followed(loader: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(loader=loader))
    status, report = judge(tmp_path, [], [])
    assert [v["summary"] for v in report["verdicts"] if v["status"] in ("FAIL", "INTERNAL ERROR")] == []
    assert status == 0


@pytest.mark.usefixtures("forked_python")
def test_a_sample_that_the_script_never_reads_is_not_its_fault(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(data="Labels"))
    status, report = judge(tmp_path, [], [])
    assert "the last one is never read" not in str(report["verdicts"])
    assert status in (0, 1, 3) and "finished" in report["runs"][0]["status"]


@pytest.mark.usefixtures("forked_python")
def test_a_script_continues_where_the_tracer_fails(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script(broken=BROKEN))
    status, report = judge(tmp_path, [], [])
    assert status == 4 and report["status"] == "INTERNAL ERROR"
    assert "this is an error of retrofit verify, not of the script: the tracer failed at" in report["conclusion"]
    assert "asked by a stranger" in report["conclusion"]
    assert all(run["status"].startswith("finished") for run in report["runs"])


def test_an_error_of_the_tracer_wins_over_every_verdict() -> None:
    runs = sound_runs()
    runs["many"].ranks[1].events.append(copy_of(ERROR, step=1))
    verdicts = run_checks(runs)
    assert overall_status(verdicts) == "INTERNAL ERROR" and exit_status(verdicts) == 4
    assert verdicts[-1].summary == (
        "the tracer failed at data/loaders.py:12 in _begin (the script on several processes, rank 1)"
    )


def test_an_error_of_a_check_does_not_fail_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(runs: object, options: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setitem(checks.CHECKS, "loss", broken)
    verdicts = {verdict.check: verdict for verdict in run_checks(sound_runs())}
    assert verdicts["loss"].summary == "the check loss failed"
    assert verdicts["loss"].value == "ZeroDivisionError: by nothing"
    assert exit_status(list(verdicts.values())) == 4


def test_a_failure_is_recorded_once_and_swallowed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "rank0.jsonl")
    for _ in range(3):
        with own_errors_recorded():
            {}["x"]
    recorder.record(ProcessExit(0, None))
    recorder.close()
    events = [event_of(line) for line in (tmp_path / "rank0.jsonl").read_text().splitlines()]
    assert [type(event) for event in events] == [TraceError, ProcessExit]
    assert event_of(line_of(ERROR, 0.0, 0)).error == ERROR.error


def test_errors_of_the_script_are_not_the_tracer_s() -> None:
    with pytest.raises(ValueError, match="of the script") as caught:
        raise ValueError("of the script")
    assert not is_of_tracer(caught.value)


@pytest.mark.parametrize(("draws", "is_own"), [(None, True), (RowDraws(print, list), False)])
def test_a_slip_in_a_wrapper_is_the_tracer_s_and_a_wrong_argument_the_script_s(draws, is_own) -> None:
    drawn = by_rows(draws, np.random, "binomial", np.random.RandomState(0).binomial, lambda: None)
    with pytest.raises((AttributeError, ValueError)) as caught:
        drawn(-1, 0.5)
    assert is_of_tracer(caught.value) == is_own


DIVERGES = """\
import os
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)
x = torch.randn(48, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Linear(8, 1))
model = torch.nn.parallel.DistributedDataParallel(net) if world > 1 else net
optimizer = torch.optim.SGD(model.parameters(), lr=30.0)
data = TensorDataset(x, x.sum(1, keepdim=True))
sampler = DistributedSampler(data, world, rank)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(data, 8 // world, sampler=sampler):
        optimizer.zero_grad()
        (torch.nn.functional.mse_loss(model(a), b) * FACTOR).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e300)
        optimizer.step()
"""


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize(("factor", "status"), [("1", 0), ("world", 1)])
def test_a_training_that_diverges_is_judged(factor: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(DIVERGES.replace("FACTOR", factor))
    ended, report = judge(tmp_path, [], [])
    assert ended == status, report["conclusion"]

"""`retrofit verify` follows scripts that start their own processes with torch.multiprocessing.spawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from verify_command import judge

from retrofit.verify.processes.launch import free_port
from retrofit.verify.runs.own_processes import NUMBER_OF_PROCESSES, with_number

pytestmark = pytest.mark.usefixtures("forked_python")

SCRIPT = """\
import argparse
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(rank, world_size, args, *others):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(PORT)
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    points = torch.randn(64, 6)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    sampler = DistributedSampler(data) if SHARDED else None
    loader = DataLoader(data, args.batch_size // world_size, sampler=sampler, shuffle=sampler is None)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.1), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(args.epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    if rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
    dist.destroy_process_group()


def inherit(rank, *args):
    assert [os.environ["SET"], sys.argv[-1], sys.path[-1], os.path.basename(os.getcwd())] == ["set"] * 4
    main(rank, *args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num-gpus", type=int, default=torch.cuda.device_count())
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=-1)
    args = parser.parse_args()
    NUMBER = args.num_gpus
    with open("parent.txt", "w") as file:
        file.write("one parent")
    START
"""
START = "mp.spawn(main, args=(NUMBER, args), nprocs=NUMBER, join=True)"
SETS = 'os.environ["SET"] = "set"; sys.argv.append("set"); sys.path.append("set"); os.mkdir("set"); os.chdir("set")'
FORMS = {
    "as many as there are GPUs": (START, [], "PASS"),
    "as many as an argument says": (START, ["--num-gpus", "4"], "PASS"),
    "not joined": (START.replace("=True", "=False") + ".join()", [], "PASS"),
    "on each of so many machines": (f"NUMBER *= args.world_size\n    {START}", ["--world-size=1"], "PASS"),
    "with what the first process has set": (f"{SETS}; {START.replace('main', 'inherit')}", [], "PASS"),
    "only several": (f"{START} if NUMBER > 1 else main(0, 1, args)", ["--num-gpus=1"], "PASS"),
    "always three": (f"NUMBER = 3\n    {START}", [], "INCOMPLETE"),
    "with a queue": (START.replace("args)", "args, mp.get_context().SimpleQueue())"), [], "INCOMPLETE"),
}


def verdict_of(
    folder: Path, start: str, arguments: list[str], sharded: bool = True, port: int | None = None
) -> tuple[int, dict[str, Any]]:
    text = SCRIPT.replace("PORT)", f"{port or free_port()})").replace("SHARDED", str(sharded)).replace("START", start)
    (folder / "train.py").write_text(text)
    return judge(folder, [], arguments)


SLOW = {"not joined", "as many as an argument says", "on each of so many machines", "with a queue"}


@pytest.mark.parametrize("form", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FORMS])
def test_the_processes_that_a_script_starts_are_compared(form: str, tmp_path: Path) -> None:
    start, arguments, expected = FORMS[form]
    port = free_port()
    status, report = verdict_of(tmp_path, start, arguments, port=port)
    assert [v["summary"] for v in report["verdicts"] if v["status"] == "FAIL"] == []
    assert report["status"] == expected and status == {"PASS": 0, "INCOMPLETE": 3}[expected]
    if expected == "INCOMPLETE":
        assert f"train.py:{len(SCRIPT.splitlines()) + start.count(chr(10))}" in report["conclusion"]
    elif form == "as many as there are GPUs":
        launch = next(verdict for verdict in report["verdicts"] if verdict["check"] == "launch")
        assert launch["note"] == f"always at port {port}: two trainings on one machine would meet there (RF602)"
        writer = next(verdict for verdict in report["verdicts"] if verdict["check"] == "single_writer")
        assert writer["summary"] == "2 files"  # the parent's, once, and that of rank 0


def test_a_fault_of_spawned_ranks_is_found(tmp_path: Path) -> None:
    status, report = verdict_of(tmp_path, START, [], sharded=False)
    assert status == 1
    assert {"shards": "RF103"}.items() <= {v["check"]: v["cause"] for v in report["verdicts"]}.items()


@pytest.mark.parametrize(
    "name", ["gpus", "n_gpu", "ngpus_per_node", "nprocs", "num_processes", "world_size", "devices"]
)
def test_options_that_say_how_many_processes_are_started(name: str) -> None:
    assert NUMBER_OF_PROCESSES.fullmatch(name)


def test_the_number_of_processes_replaces_the_one_given() -> None:
    assert with_number(["--gpus", "2", "--epochs", "2"], "--gpus", 3) == ["--gpus", "3", "--epochs", "2"]
    assert with_number(["--gpus=2"], "--gpus", 1) == ["--gpus=1"]
    assert with_number(["--epochs", "2"], "--gpus", 4) == ["--epochs", "2", "--gpus", "4"]

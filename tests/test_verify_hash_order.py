"""`retrofit verify` gives every rank another hash seed, as a launcher does: orders taken from sets differ."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from verify_command import ROOT, judge
from verify_processes import is_alive, wait_until

# Without `forked_python`, whose interpreters share one hash seed.

SCRIPT = """\
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=8)
args = parser.parse_args()
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")
torch.manual_seed(0)


class Recordings(Dataset):
    def __init__(self):
        values = torch.randn(48, 6)
        names = [f"{('rain', 'wind', 'hail', 'snow', 'frost', 'fog')[i % 6]}/{i}.wav" for i in range(48)]
        kinds = KINDS
        self.files = FILES
        self.value = {name: values[names.index(name)] for name in self.files}
        self.number = {kind: number for number, kind in enumerate(kinds)}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        name = self.files[index]
        return self.value[name], self.number[name.split("/")[0]]


data = Recordings()
model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.LayerNorm(16), torch.nn.ReLU(), torch.nn.Linear(16, 6))
torch.manual_seed(rank)
ddp = DistributedDataParallel(model) if world > 1 else model
by_name = dict(model.named_parameters())
plain = {name for name in by_name if name.endswith("bias") or name.startswith("1.")}
decayed = set(by_name) - plain
groups = [{"params": [by_name[name] for name in names]} for names in (decayed, plain)]
optimizer = torch.optim.AdamW([{**groups[0], "weight_decay": 0.1}, {**groups[1], "weight_decay": 0.0}], lr=0.01)
sampler = DistributedSampler(data, drop_last=True) if world > 1 else None
loader = DataLoader(data, args.batch_size, shuffle=sampler is None, sampler=sampler, drop_last=True)
for epoch in range(args.epochs):
    if sampler is not None:
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(x), y).backward()
        optimizer.step()
if world > 1:
    dist.destroy_process_group()
"""
SOUND = {"KINDS": "sorted({name.split('/')[0] for name in names})", "FILES": "sorted(set(names))"}
BUGS = {
    "files of a set": {"FILES": "list(set(names))"},
    "class numbers of a set": {"KINDS": "{name.split('/')[0] for name in names}"},
    "class numbers of a hash": {"number for number, kind in enumerate(kinds)": "hash(kind) % 6 for kind in kinds"},
    "validation by hash": {"FILES": "sorted(name for name in names if hash(name) % 3)[:24]"},
}


SLOW = {"class numbers of a set", "class numbers of a hash", "validation by hash"}


def write(folder: Path, changes: dict[str, str]) -> None:
    text = SCRIPT
    for old, new in {**SOUND, **changes}.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "train.py").write_text(text)


def failures(report: dict) -> dict[str, str]:
    return {v["check"]: v["cause"] for v in report["verdicts"] if v["status"] == "FAIL"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in BUGS])
def test_an_order_that_follows_hashes_is_found(name: str, tmp_path: Path) -> None:
    write(tmp_path, BUGS[name])
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert status == 1 and failures(report)["split"] == "RF108", failures(report)


def test_sorted_names_and_groups_of_a_set_are_sound(tmp_path: Path) -> None:
    write(tmp_path, {})
    status, report = judge(tmp_path, ["-n", "3", "--batch-flag", "batch_size"], ["--batch_size", "12"])
    assert failures(report) == {} and status == 0


def test_a_hash_seed_of_the_users_is_that_of_all_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    write(tmp_path, BUGS["files of a set"])
    status, report = judge(tmp_path, ["--batch-flag", "batch_size"], ["--batch_size", "8"])
    assert failures(report) == {} and status == 0


STATE = """\
import json, os, signal, sys, threading
import torch
open(f"state{os.environ.get('RANK', 'alone')}.json", "w").write(json.dumps({
    "path": sys.path, "cwd": os.getcwd(), "environ": dict(os.environ), "argv": sys.argv,
    "threads": torch.get_num_threads(), "running": threading.active_count(), "parent": os.getppid(),
    "kit": [name for name in sys.modules if name.split(".")[0] == "retrofit"],
    "session": os.getsid(0) == os.getpid(), "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)],
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "flags": list(sys.flags), "files": sorted(os.listdir()), "hash": hash("a name"),
}))
"""


def test_such_a_rank_is_as_one_that_the_parent_forks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STATE)
    (tmp_path / "pickle.py").write_text("raise ImportError('the project has no part in our own work')")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MINE": "1"}
    command = [sys.executable, "-m", "retrofit", "verify", "--keep", "kept", "train.py", "--", "--flag"]
    subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, timeout=300)
    folder = tmp_path / "kept" / "many" / "project"
    first, second = (json.loads((folder / f"state{rank}.json").read_text()) for rank in (0, 1))
    assert first.pop("hash") != second.pop("hash")
    for own in (first, second):
        assert own["environ"].pop("RANK") == own["environ"].pop("LOCAL_RANK")
        assert "PYTHONHASHSEED" not in own["environ"] and own["environ"]["MINE"] == "1"
        del own["files"], own["descriptors"]
    assert first == second


SLEEPS = """\
import os
import time
rank = os.environ.get("RANK", "alone")
if rank != "alone" or {alone}:
    open("here_" + rank, "w").close()
    time.sleep(600)
"""
ENDINGS = [
    pytest.param("alone", signal.SIGKILL, marks=pytest.mark.slow),
    ("alone", signal.SIGTERM),
    ("1", signal.SIGKILL),
    pytest.param("1", signal.SIGINT, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("rank", "number"), ENDINGS)
def test_no_interpreter_is_left(rank: str, number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPS.format(alone=rank == "alone"))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "retrofit", "verify", "--keep", "kept", "train.py"]
    verify = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    project = tmp_path / "kept" / ("one" if rank == "alone" else "many") / "project"
    try:
        wait_until((project / f"here_{rank}").exists)
        started = psutil.Process(verify.pid).children(recursive=True)
        assert len(started) >= (2 if rank == "alone" else 3)
        verify.send_signal(number)
        assert verify.wait(30) in (-number, 128 + number)
        wait_until(lambda: not any(is_alive(process.pid) for process in started))
    finally:
        verify.kill()
        verify.wait()

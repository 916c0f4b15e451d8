"""Facts that PyTorch reports about this machine, and checks of PyTorch and Python."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, fields
from typing import Any

from retrofit.doctor.child import Ended, python_command, run
from retrofit.doctor.finding import FAIL, OK, WARN, Finding

DEADLINE_S = 90.0  # a first import of torch over a network file system, and a slow start of eight GPUs
OLDEST_PYTHON = (3, 9)
OLDEST_TORCH = (2, 1)


@dataclass(frozen=True)
class TorchFacts:
    """The facts that `torch_probe` printed; if it failed, `error` says why, the rest is the default."""

    error: str = ""
    stage: str = ""  # the last one it began
    python: str = ""
    torch: str = ""  # version; empty: it cannot be imported
    cuda: str | None = None  # the CUDA version that torch was built for; None: built without
    hip: str | None = None  # the same for AMD's
    backends: list[str] = field(default_factory=list)
    nccl: str | None = None
    architectures: list[str] = field(default_factory=list)  # "sm_80", "compute_90"
    place_error: str = ""
    launcher: str = "none"
    rank: int = 0
    world_size: int = 1
    num_gpus: int = 0  # that torch can use
    reason: str = ""  # why there are none
    gpus: list[dict[str, Any]] = field(default_factory=list)  # name, capability, free, total; or error
    peers: list[list[bool]] = field(default_factory=list)


def ask_torch(deadline_s: float = DEADLINE_S) -> TorchFacts:
    """Run `torch_probe` in a child process with this one's environment and return its facts."""
    return facts_from(run(python_command("retrofit.doctor.gpu.torch_probe"), deadline_s), deadline_s)


def facts_from(ended: Ended, deadline_s: float) -> TorchFacts:
    """Return the facts in the output of `torch_probe`."""
    facts: dict[str, Any] = {}
    for line in ended.stdout.splitlines():
        try:
            facts.update(json.loads(line))
        except ValueError:  # something that an imported package printed
            continue
    known = {one.name for one in fields(TorchFacts)}
    facts = {key: value for key, value in facts.items() if key in known}
    last = ([line.strip() for line in ended.stderr.splitlines() if line.strip()] or [""])[-1]
    if ended.status is None:
        facts["error"] = f"no answer within {deadline_s:.0f} s to: {facts.get('stage', 'start Python')}"
    elif ended.status != 0:
        facts["error"] = f"ended with status {ended.status} at: {facts.get('stage', 'start Python')} ({last})"
    return TorchFacts(**facts)


def check_python() -> Finding:
    """Check whether this Python is one that the kit supports."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        return Finding("Python", FAIL, f"{version} ({sys.executable})", "use Python 3.9 or newer")
    return Finding("Python", OK, f"{version} ({sys.executable})")


def check_torch(facts: TorchFacts) -> Finding:
    """Check whether torch imports, is new enough, and can talk between processes."""
    name = "PyTorch"
    if not facts.torch:
        remedy = f"{sys.executable} -m pip install 'torch>=2.1', or activate the environment that has it"
        return Finding(name, FAIL, f"import torch fails: {facts.error}", remedy)
    built = f"CUDA {facts.cuda}" if facts.cuda else f"ROCm {facts.hip}" if facts.hip else "the CPU only"
    value = f"{facts.torch}, built for {built}; backends: {', '.join(facts.backends) or 'none'}"
    if version_of(facts.torch) < OLDEST_TORCH:
        return Finding(name, FAIL, value, "the kit needs torch 2.1 or newer: pip install --upgrade torch torchvision")
    if facts.error:
        remedy = "see `dmesg | grep -i -e xid -e nvrm` for a GPU that has failed; `python -c 'import torch; "
        remedy += "torch.cuda.init()'` must end"
        return Finding(name, FAIL, f"{facts.torch}: {facts.error}", remedy)
    if not facts.backends:
        return Finding(name, FAIL, value, "this build has no torch.distributed; install one from pytorch.org")
    if "gloo" not in facts.backends:
        remedy = "counts and decisions travel over gloo; install a build that has it, from pytorch.org"
        return Finding(name, WARN, value, remedy)
    return Finding(name, OK, value)


def version_of(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `2.1.0a0+cu121` -> (2, 1, 0)."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return tuple(numbers)

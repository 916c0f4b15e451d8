"""The all-reduce test: processes on this machine add up tensors, as every step of a training will."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrofit.doctor.child import end, python_command
from retrofit.doctor.network.allreduce_worker import LARGEST, MARK

DEADLINE_S = 60.0
GRACE_S = 3.0  # for the other ranks to print their errors after one has failed
LAUNCHER_PREFIXES = ("TORCHELASTIC_", "SLURM_", "GROUP_", "ROLE_")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Measured:
    """How long an all-reduce of one size took."""

    num_bytes: int
    seconds: float  # of the slowest rank

    def bus_bandwidth(self, num_ranks: int) -> float:
        """Return GB/s over the slowest link: 2(n-1)/n * bytes / time, which does not depend on the number of ranks.

        https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
        """
        return 2 * (num_ranks - 1) / num_ranks * self.num_bytes / self.seconds / 1e9


@dataclass
class RankLog:
    """The output of one process, and how it ended."""

    status: int | None = None  # None: it was killed at the deadline
    phase: str = "start"  # the last one it began
    facts: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""  # everything that was not for the parent


@dataclass(frozen=True)
class Outcome:
    """The result of the test."""

    problem: str  # in one line; empty: every sum was right
    measured: list[Measured]
    addresses: list[str]  # over which the ranks talked
    ranks: list[RankLog]


def all_reduce(
    backend: str,
    num_ranks: int,
    deadline_s: float = DEADLINE_S,
    settings: Mapping[str, str] | None = None,
    largest: int = LARGEST,
) -> Outcome:
    """Run the test on `num_ranks` processes, with tensors of up to `largest` bytes, and end them after `deadline_s`.

    `settings` join the environment.
    """
    with tempfile.TemporaryDirectory(prefix="retrofit-doctor-") as folder:
        logs = [Path(folder) / f"rank{rank}.log" for rank in range(num_ranks)]
        port = _free_port()
        processes: list[subprocess.Popen] = []
        try:
            for rank, log in enumerate(logs):
                environ = worker_environment(os.environ, rank, num_ranks, port, settings or {})
                processes.append(_start([backend, str(max(1.0, deadline_s - 2)), str(largest)], log, environ))
            first_failed = _wait(processes, deadline_s)
            statuses = [process.poll() for process in processes]
        finally:
            for process in processes:
                end(process)
        return read_outcome(statuses, first_failed, [log.read_text(errors="replace") for log in logs], deadline_s)


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without what a launcher has put into it."""
    return {
        name: value
        for name, value in environ.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith(LAUNCHER_PREFIXES)
    }


def worker_environment(
    environ: Mapping[str, str], rank: int, num_ranks: int, port: int, settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of one process: the user's, with the variables of a launcher of our own."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"}
    return {**without_launcher(environ), **place, "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), **settings}


def read_outcome(
    statuses: Sequence[int | None], first_failed: int | None, logs: Sequence[str], deadline_s: float
) -> Outcome:
    """Return the result of the test from the logs; after the first failure the other ranks often fail too."""
    ranks = [_rank_log(status, log) for status, log in zip(statuses, logs)]
    facts = [(rank, fact) for rank, log in enumerate(ranks) for fact in log.facts]
    wrong = [f"rank {rank}: {fact['wrong']}" for rank, fact in facts if fact.get("wrong")]
    problem = ""
    if wrong:
        problem = f"wrong sums: {wrong[0]}"
    elif first_failed is not None:
        log = ranks[first_failed]
        problem = f"rank {first_failed} {_how_it_ended(log.status)} at: {log.phase}"
    elif any(status is None for status in statuses):
        where = "; ".join(f"rank {rank}: {log.phase}" for rank, log in enumerate(ranks))
        problem = f"no end within {deadline_s:.0f} s ({where})"
    slowest: dict[int, float] = {}
    for _, fact in facts:
        if "num_bytes" in fact:
            slowest[fact["num_bytes"]] = max(fact["seconds"], slowest.get(fact["num_bytes"], 0.0))
    measured = [Measured(num_bytes, seconds) for num_bytes, seconds in slowest.items()]
    addresses = sorted({one for _, fact in facts for one in fact.get("addresses", ())})
    return Outcome(problem, measured, addresses, ranks)


def _start(arguments: Sequence[str], log: Path, environ: Mapping[str, str]) -> subprocess.Popen:
    command = python_command("retrofit.doctor.network.allreduce_worker", *arguments)
    with log.open("wb") as file:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=dict(environ)
        )


def _wait(processes: Sequence[subprocess.Popen], deadline_s: float) -> int | None:
    """Wait until all end or the time is up, which is short after a failure; return the first rank that failed."""
    deadline = time.monotonic() + deadline_s
    first_failed = None
    while True:
        statuses = [process.poll() for process in processes]
        failed = [rank for rank, status in enumerate(statuses) if status]
        if failed and first_failed is None:
            first_failed = failed[0]
            deadline = min(deadline, time.monotonic() + GRACE_S)
        if None not in statuses or time.monotonic() > deadline:
            return first_failed
        time.sleep(0.05)


def _rank_log(status: int | None, text: str) -> RankLog:
    log = RankLog(status)
    output = []
    for line in text.splitlines():
        if not line.startswith(MARK):
            output.append(line)
            continue
        fact = json.loads(line[len(MARK) :])
        log.phase = fact.get("phase", log.phase)
        log.facts.append(fact)
    log.output = "\n".join(output)
    return log


def _how_it_ended(status: int | None) -> str:
    if status is not None and status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("", 0))
        return server.getsockname()[1]

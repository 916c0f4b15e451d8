"""Machines with one thing wrong, made from this one: processes with namespaces and limits of their own.

Linux gives a process its own mounts, host name or network (`unshare`), to root and, on most machines, to others too.
Nothing outside such a process changes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from retrofit.doctor.finding import Finding

ROOT = Path(__file__).resolve().parents[1]
LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "GLOO_SOCKET_IFNAME",
    "NCCL_SOCKET_IFNAME",
)
COMMAND_LINE = (
    "import argparse, sys; from retrofit.doctor import command; parser = argparse.ArgumentParser(prog='retrofit'); "
    "command.add_parser(parser.add_subparsers(required=True)); sys.exit(command.run(parser.parse_args()))"
)


@lru_cache
def unshare_command() -> tuple[str, ...]:
    """Return how this user gets namespaces here; empty: not at all."""
    for command in (("unshare",), ("unshare", "--map-root-user")):
        if shutil.which("unshare") and subprocess.run([*command, "-m", "true"], capture_output=True).returncode == 0:
            return command
    return ()


needs_unshare = pytest.mark.skipif(not unshare_command(), reason="needs `unshare`, as root or with user namespaces")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without a launcher's variables; `variables` join it."""
    kept = {key: value for key, value in os.environ.items() if key not in LAUNCHER and not key.startswith("SLURM_")}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **variables}


def doctor(
    *arguments: str, before: str = "", namespaces: str = "", cwd: Path = ROOT, timeout_s: float = 600, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run `retrofit doctor *arguments` to its end, in `namespaces` of its own after the shell commands `before`."""
    command = [sys.executable, "-c", COMMAND_LINE, "doctor", *arguments]
    return _run(command, before, namespaces, cwd, timeout_s, variables)


def doctor_findings(*arguments: str, **options: Any) -> dict[str, dict[str, str]]:
    """Return what `retrofit doctor --json` found, by name."""
    ended = doctor("--json", *arguments, **options)
    assert ended.returncode in (0, 1), ended.stderr
    return {finding["name"]: finding for finding in json.loads(ended.stdout)["findings"]}


def finding_of(code: str, before: str = "", namespaces: str = "", timeout_s: float = 300, **variables: str) -> Finding:
    """Return the Finding that the expression at the end of `code` is, in a process of its own."""
    *statements, expression = code.strip().splitlines()
    program = "\n".join(
        [
            "import dataclasses, json",  # first: the statements may give up the right to read files
            *statements,
            f"print(json.dumps(dataclasses.asdict({expression})))",
        ]
    )
    ended = _run([sys.executable, "-c", program], before, namespaces, ROOT, timeout_s, variables)
    assert ended.returncode == 0, ended.stderr
    return Finding(**json.loads(ended.stdout.splitlines()[-1]))


def _run(
    command: list[str], before: str, namespaces: str, cwd: Path, timeout_s: float, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    if namespaces:
        script = f"set -e; {before}\nexec {shlex.join(command)}"
        command = [*unshare_command(), *namespaces.split(), "sh", "-c", script]
    return subprocess.run(
        command, env=environment(**variables), cwd=cwd, capture_output=True, text=True, timeout=timeout_s
    )

"""Measure the CPU time of `retrofit verify` against that of the script's own runs, process starts included.

  python benchmarks/verify_cost.py                     the scripts of benchmarks/mutation/subjects/
  python benchmarks/verify_cost.py --rounds 3 --nproc 4

The script's own runs are one in one process (`python train.py`) and one in N (`torchrun`), with the same arguments.
Both are measured in turns, each ROUNDS times; the ratio of a script is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUBJECTS = Path(__file__).resolve().parent / "mutation" / "subjects"
MOST = 4.0  # times the script's own runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default: 3)")
    parser.add_argument("--nproc", type=int, default=2, help="processes that are compared with one (default: 2)")
    args = parser.parse_args()
    print("| Script | Own runs, CPU s | verify, CPU s | Ratio |\n|---|---|---|---|")
    ratios = []
    for name, content in json.loads((SUBJECTS / "arguments.json").read_text()).items():
        own, verify = [], []
        for _ in range(args.rounds):
            own.append(cpu_of(name, own_commands(content["arguments"], args.nproc)))
            command = [sys.executable, "-m", "retrofit", "verify", "--html", "", "--nproc", str(args.nproc)]
            verify.append(cpu_of(name, [[*command, *content["options"], "train.py", "--", *content["arguments"]]]))
        ratios.append(statistics.median(verify) / statistics.median(own))
        print(
            f"| {name} | {statistics.median(own):.1f} | {statistics.median(verify):.1f} | {ratios[-1]:.2f} |",
            flush=True,
        )
    print(f"\nlargest ratio {max(ratios):.2f}, at most {MOST:g} is meant")
    return 0


def own_commands(arguments: list[str], nproc: int) -> list[list[str]]:
    many = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={nproc}"]
    return [[sys.executable, "train.py", *arguments], [*many, "train.py", *arguments]]


def cpu_of(name: str, commands: list[list[str]]) -> float:
    """Return the CPU seconds of all processes of commands that are run one after the other in a copy of a folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = shutil.copytree(SUBJECTS / name, Path(temporary, name))
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        for command in commands:
            done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
            if done.returncode not in (0, 3):
                raise SystemExit(f"{' '.join(command)} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    sys.exit(main())

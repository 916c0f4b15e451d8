"""Run scripts traced, each in forked processes of one fresh interpreter: `python trace_driver.py RUNS.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch._dynamo  # noqa: F401  every optimizer imports it; here it is once for all runs

from retrofit.verify.processes.launch import Launch, run_together
from retrofit.verify.trace.settings import TraceSettings


def main() -> None:
    for run in json.loads(Path(sys.argv[1]).read_text()):
        world_size = run.get("world_size", 1)
        settings = [
            TraceSettings(run["folder"], run["project"], rank=rank, world_size=world_size, **run.get("settings", {}))
            for rank in range(world_size)
        ]
        result = run_together([Launch(settings, run["script"], run.get("argv", []))], time_limit_s=300)[0]
        Path(run["folder"], "statuses.json").write_text(json.dumps(result.statuses))


if __name__ == "__main__":
    main()

"""Starts ranks through the launcher of the runtime, each case on a terminal of its own, and presses Ctrl-C there.

  python launcher_driver.py RANKS.py < CASES      CASES: {name: case} as JSON, see `Case` in test_launcher.py

One process imports torch's launcher, which takes seconds, and forks for each case. Prints {name: [status, seconds,
output]} as JSON. A line `<KEY>` in the output shows when the key was pressed or the signal was sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch.distributed.elastic.agent.server.local_elastic_agent
import torch.distributed.launcher.api  # noqa: F401  the weight of torch.distributed.run, which is run as __main__
from torch.distributed.elastic.multiprocessing.api import PContext

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from retrofit.distributed import launcher

LIMIT_S = 60


def run(ranks: str, case: dict[str, Any]) -> tuple[int, float, str]:
    """Run one case and return its exit status (minus the signal that ended it), its seconds and what it printed."""
    arguments = ["--nproc_per_node=2", "--standalone", f"--max_restarts={case.get('restarts', 0)}"]
    pid, terminal = pty.fork()
    if pid == 0:
        status = 99
        try:
            delay_start(case.get("slow_start_s", 0.0))
            status = launcher.launch(["torch.distributed.run", *arguments, ranks, case["mode"]])
        except SystemExit as error:
            status = int(error.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return watch(pid, terminal, case)


def delay_start(seconds: float) -> None:
    """Let the launcher start later than its ranks, as on a busy machine: `seconds` after their start."""
    start = PContext.start

    def delayed(processes: PContext) -> None:
        start(processes)
        time.sleep(seconds)

    PContext.start = delayed  # type: ignore[method-assign]


def watch(pid: int, terminal: int, case: dict[str, Any]) -> tuple[int, float, str]:
    started, output, to_send = time.monotonic(), "", list(case.get("signals", []))
    with contextlib.suppress(OSError):  # the terminal's end, when the last process has closed it
        while data := os.read(terminal, 4096).decode(errors="replace"):
            output += data.replace("\r\n", "\n")
            # One rank's line is not enough: the other may still be starting.
            if to_send and output.count(to_send[0]["when"]) >= to_send[0].get("times", 1):
                one = to_send.pop(0)
                time.sleep(one.get("wait_s", 0.0))
                output += "\n<KEY>\n"
                for number in range(one.get("sent", 1)):
                    time.sleep(0.1 * number)
                    if one["signal"] == "Ctrl-C":
                        os.write(terminal, b"\x03")
                    else:
                        os.kill(pid, getattr(signal, one["signal"]))
            if time.monotonic() - started > LIMIT_S:
                os.kill(pid, signal.SIGKILL)
                break
    _, status = os.waitpid(pid, 0)
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status), time.monotonic() - started, output


if __name__ == "__main__":
    print(json.dumps({name: run(sys.argv[1], case) for name, case in json.load(sys.stdin).items()}))

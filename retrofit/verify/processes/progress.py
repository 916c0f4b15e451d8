"""Progress on the standard error output: a line per stage and a bar of optimizer steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from retrofit.verify.trace.events import OptimizerStep, line_start

STEP = line_start(OptimizerStep).encode()


class _Bar(tqdm):
    monitor_interval = 0  # no thread: the process forks while the bar is shown


class Progress:
    """Writes to the standard error output, so that the standard output holds nothing but the result."""

    def __init__(self) -> None:
        self.started = time.perf_counter()

    @contextmanager
    def stage(self, text: str, traces: Sequence[Path], total: int | None) -> Iterator[Callable[[], None]]:
        """Announce a stage of runs; the function that it gives redraws the bar and is to be called now and then.

        `traces`: the trace file of one rank of each run. `total`: optimizer steps of all these, None if unknown.
        """
        print(f"[{self.seconds():5.1f} s] {text} ...", file=sys.stderr, flush=True)
        counts = [StepCount(trace) for trace in traces]
        # disable=None: no bar where the output is not a terminal.
        with _Bar(total=total, desc="optimizer steps", unit="step", leave=False, disable=None, mininterval=0) as bar:

            def redraw() -> None:
                bar.update(sum(count.new_steps() for count in counts))

            yield redraw

    def seconds(self) -> float:
        return time.perf_counter() - self.started


class StepCount:
    """Counts the optimizer steps in a trace file that is being written."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace
        self._position = 0

    def new_steps(self) -> int:
        """Return the steps recorded since the last call; none before the file exists."""
        with suppress(OSError), open(self.trace, "rb") as file:
            file.seek(self._position)
            written = file.read()
            lines = written[: written.rfind(b"\n") + 1]
            self._position += len(lines)
            return sum(line.startswith(STEP) for line in lines.splitlines())
        return 0

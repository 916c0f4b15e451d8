"""What a person sees while the runs go on."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from retrofit.verify.processes.progress import StepCount

STAGE = """
import sys
from pathlib import Path
from retrofit.verify.processes.progress import Progress

traces = [Path(path) for path in sys.argv[1:]]
with Progress().stage("2 processes", traces, 6) as on_progress:
    for trace in traces:
        trace.write_text('{"event": "OptimizerStep", "number": 0}\\n{"event": "OptimizerStep", "number": 1}\\n')
    on_progress()
"""


def text_on(terminal: int) -> Iterator[str]:
    with suppress(OSError):  # the last process that could write to it has ended
        while True:
            yield os.read(terminal, 10_000).decode()
    os.close(terminal)


def test_steps_are_counted_once_and_only_when_their_line_is_whole(tmp_path: Path) -> None:
    count = StepCount(tmp_path / "rank0.jsonl")
    assert count.new_steps() == 0
    with open(count.trace, "w") as trace:
        trace.write('{"event": "ProcessStart"}\n{"event": "OptimizerStep", "number": 0}\n{"event": "Opt')
        trace.flush()
        assert count.new_steps() == 1
        trace.write('imizerStep", "number": 1}\n')
        trace.flush()
        assert count.new_steps() == 1
    assert count.new_steps() == 0


def test_a_terminal_shows_a_bar_of_the_steps_and_a_file_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STAGE, str(tmp_path / "a"), str(tmp_path / "b")]
    terminal, its_end = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    subprocess.run(command, stderr=its_end, check=True, timeout=300)
    os.close(its_end)
    shown = "".join(text_on(terminal))
    assert "2 processes ..." in shown and "optimizer steps:  67%" in shown and "4/6" in shown
    piped = subprocess.run(command, stderr=subprocess.PIPE, check=True, text=True, timeout=300)
    assert piped.stderr.endswith("2 processes ...\n") and piped.stderr.count("\n") == 1

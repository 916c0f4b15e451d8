"""What measurements in turns have in common: everything is run once per round, and the rounds are summed up."""

from __future__ import annotations

import os
import platform
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def environment() -> str:
    """Return what all figures depend on, in one line."""
    import torch

    machine = f"{os.cpu_count()} CPUs ({cpu_name()})"
    return f"python {platform.python_version()}, torch {torch.__version__}, {machine}, one thread per process"


def cpu_name() -> str:
    """Return the processor's name, or its architecture where the system does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def command() -> str:
    """Return the command that was typed, as the documents show it."""
    script = Path(sys.argv[0]).resolve()
    shown = script.relative_to(ROOT) if script.is_relative_to(ROOT) else script
    return f"python {shown} {shlex.join(sys.argv[1:])}".rstrip()


def median_and_range(values: Iterable[float], digits: int = 3) -> str:
    """Return "1.905 (1.880 .. 1.939)": the median of the rounds, the smallest and the largest."""
    found = list(values)
    middle, low, high = (f"{value:.{digits}f}" for value in (statistics.median(found), min(found), max(found)))
    return f"{middle} ({low} .. {high})"


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (titles, ["---"] * len(titles), *rows)]
    return "\n".join(lines) + "\n"


def text_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return the table in columns for a terminal."""
    cells = [list(titles), *(list(row) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)

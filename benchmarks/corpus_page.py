"""The page of benchmarks/corpus.py: the table, what the columns mean, and what is listed rather than reduced."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from corpus_projects import section

ROOT = Path(__file__).resolve().parents[1]
PAGE = """\
# Real projects

Written by `python benchmarks/corpus.py --output docs/corpus.md` on {date}, at commit {commit}, with Python {python}
on {cores} CPU cores (gloo): real training projects, each with tiny made-up data, run as they are, then converted and
run on one, two and three processes, without an edit by hand. Loaders in a fixed order are cut so that their number of
batches divides neither by 2 nor by 3.

{summary}.

- `lines`: inserted and changed lines in the project's own files.
- `world_1`: losses, gradient norms and parameter norms of every step on one process, against the original's.
- `two_ranks`, `three_ranks`: seconds of the run on two processes with `RETROFIT_BATCH=global`, and on three in the
  default mode.
- `ranks_equal`: the parameters of both ranks after every step; `samples_once`: the batches that both train on together
  against those of one process, step by step; `single_writer`: files that rank 1 wrote (those of `torch.save` too).
- `parity`: losses, gradients and parameters of the first three steps in float64, against one process; else the largest
  relative difference of the losses and of the weights. "sum": the loss is a sum over the batch.
- `default_mode`: two processes in the default mode, the batch of the script on each: the gradient of the first step
  against one process with the batch of both, and the factor on the learning rates.

{table}
{explanations}## Figures of rank 0's share

What `retrofit convert` lists because it is neither reduced nor the same on all ranks:

{listed}

{projects}"""
COLUMNS = (
    "outcome",
    "lines",
    "world_1",
    "two_ranks",
    "three_ranks",
    "ranks_equal",
    "samples_once",
    "single_writer",
    "parity",
    "default_mode",
)


@dataclass
class Row:
    """What came of one project; an empty field was not reached."""

    name: str
    outcome: str = ""
    lines: int = 0
    world_1: str = ""
    two_ranks: str = ""
    three_ranks: str = ""
    ranks_equal: str = ""
    samples_once: str = ""
    single_writer: str = ""
    parity: str = ""
    default_mode: str = ""
    notes: list[str] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)


def table(rows: Sequence[Row], args: argparse.Namespace) -> str:
    lines = ["| project | " + " | ".join(COLUMNS) + " | notes |", "|---" * (len(COLUMNS) + 2) + "|"]
    for row in rows:
        cells = [str(getattr(row, column)) for column in COLUMNS]
        lines.append(f"| {source_of(row.name, args)} | {' | '.join(cells)} | {'; '.join(row.notes)} |")
    return "\n".join(lines) + "\n"


def source_of(name: str, args: argparse.Namespace) -> str:
    """Return a recipe's name with its repository and the commit of that."""
    found = re.search(r"get_src ([\w-]+?)__([\w.-]+)", (args.recipes / f"{name}.sh").read_text(encoding="utf-8"))
    if found is None:
        return name
    folders = (args.sources / f"{found[1]}__{found[2]}", args.sources / f"{found[1]}+{found[2]}" / "repo")
    commit = next((_commit(folder) for folder in folders if folder.exists()), "unknown")
    return f"{name} ({found[1]}/{found[2]} @ {commit})"


def _commit(folder: Path) -> str:
    inside = ["-C", str(folder)] if (folder / ".git").exists() else ["--git-dir", str(folder)]
    command = ["git", *inside, "rev-parse", "--short=10", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def page(rows: Sequence[Row], args: argparse.Namespace) -> str:
    """Return the table with what was run, when, and what the columns mean."""
    explanations = args.explanations.read_text(encoding="utf-8") + "\n" if args.explanations else ""
    return PAGE.format(
        date=time.strftime("%Y-%m-%d"),
        commit=_commit(ROOT),
        python=platform.python_version(),
        cores=os.cpu_count(),
        summary=summary(rows),
        table=table(rows, args),
        explanations=explanations,
        listed=_listed(rows),
        projects=section(),
    )


def _listed(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        if row.listed:
            lines += [f"- {row.name}", *(f"  - `{line}`" for line in row.listed)]
    return "\n".join(lines) or "Nothing."


def summary(rows: Sequence[Row]) -> str:
    """Return the counts in one sentence."""
    converted = [row for row in rows if row.outcome == "converted"]
    refused = f"{sum(row.outcome == 'refused' for row in rows)} are refused"
    if not converted:
        return f"0 of {len(rows)} projects converted; {refused}"
    lines = sorted(row.lines for row in converted)
    facts = [
        f"{len(converted)} of {len(rows)} projects converted with no edit by hand "
        f"({lines[0]} to {lines[-1]} added lines, median {statistics.median(lines):g})",
        f"{_number(converted, 'world_1', 'bit-equal')} of them are bit-equal on one process",
        f"{sum(bool(row.ranks_equal) for row in converted)} ran to the end on two",
        f"{sum(row.three_ranks.endswith(' s') for row in converted)} on three",
        f"in {_number(converted, 'ranks_equal', 'yes')} both ranks hold the same parameters after every step",
        f"in {_number(converted, 'single_writer', 'yes')} rank 0 alone writes",
        f"in {_number(converted, 'parity', 'yes')} losses, gradients and parameters of the first steps are those of "
        "one process",
        f"in {_number(converted, 'default_mode', 'gradient yes')} the first gradient of the default mode is that of "
        "one process with the larger batch",
        refused,
    ]
    return "; ".join(facts)


def _number(rows: Sequence[Row], column: str, start: str) -> int:
    return sum(getattr(row, column).startswith(start) for row in rows)

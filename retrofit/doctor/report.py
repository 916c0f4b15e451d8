"""Output of `retrofit doctor`: a table on a terminal, plain lines elsewhere, or JSON.

JSON, schema version 1; keys are never renamed or removed within a version, new ones may appear.

    schema_version   1
    status           "OK" | "FAIL": FAIL when one finding is
    plan             {ranks, workers, nnodes}: the training that the checks are for
    findings         [{name, status, value, remedy}, ...]; status: "OK" | "WARN" | "FAIL" | "SKIP"
    all_reduce       [{backend, problem, addresses, measured: [{bytes, seconds, busbw_gb_per_s}, ...],
                     output: [str, ...] of each rank}, ...], one item per backend
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from retrofit.doctor.finding import FAIL, OK, SKIP, STATUSES, WARN, Finding, Plan
from retrofit.doctor.network.allreduce import Outcome

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA_VERSION = 1
ORDER = (SKIP, OK, WARN, FAIL)  # the reader sees the end of the output first
STYLES = {OK: "green", WARN: "bold yellow", FAIL: "bold red", SKIP: "dim"}
MAX_WIDTH = 120  # longer lines are hard to read


def print_report(plan: Plan, findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print a table on a terminal; elsewhere one line per finding, for grep, and one for its remedy.

    OK comes before WARN and FAIL; findings of one status are in the order of the checks.
    """
    from rich.console import Console
    from rich.text import Text

    console = console or Console()
    findings = sorted(findings, key=lambda finding: ORDER.index(finding.status))
    if not console.is_terminal:
        for line in plain_lines(plan, findings):
            print(_encodable(line, console.encoding), file=console.file)
        return
    width = min(console.width, MAX_WIDTH)
    console.print(Text(f"Checked for {plan}.", "dim"), width=width)
    console.print()
    console.print(_table(findings, console.encoding), width=width)
    console.print()
    style = STYLES[FAIL if has_failed(findings) else WARN if _count(findings, WARN) else OK]
    console.print(Text(summary(findings), f"bold {style}"), width=width)


def plain_lines(plan: Plan, findings: Sequence[Finding]) -> list[str]:
    """Return the report without a table; lines are not wrapped."""
    lines = [f"Checked for {plan}."]
    for finding in findings:
        lines.append(f"{finding.status:<4}  {finding.name}: {printable(finding.value)}".replace("\n", "\n        "))
        if finding.remedy:
            lines.append(f"      -> {printable(finding.remedy)}")
    return [*lines, summary(findings)]


def report_as_json(plan: Plan, findings: Sequence[Finding], outcomes: Mapping[str, Outcome]) -> str:
    """Return the report as JSON text."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "status": FAIL if has_failed(findings) else OK,
        "plan": asdict(plan),
        "findings": [asdict(finding) for finding in findings],
        "all_reduce": [_outcome(backend, outcome) for backend, outcome in outcomes.items()],
    }
    return json.dumps(content, indent=2)


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether something must be fixed before the training starts."""
    return bool(_count(findings, FAIL))


def summary(findings: Sequence[Finding]) -> str:
    """Return the last line: the number of findings of each status, and what to do next."""
    counts = ", ".join(f"{_count(findings, status)} {status}" for status in STATUSES)
    if has_failed(findings):
        return f"{counts}: fix what is FAIL before you start"
    return f"{counts}: nothing to fix" + (", but read what is WARN" if _count(findings, WARN) else "")


def printable(text: str) -> str:
    """Return `text` with control characters escaped: the output of a process may contain terminal commands."""
    lines = text.expandtabs(4).splitlines()
    return "\n".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines)


def _table(findings: Sequence[Finding], encoding: str):  # type: ignore[no-untyped-def]
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False, expand=True)
    table.add_column("", min_width=4, max_width=4)
    table.add_column("check", max_width=22)
    table.add_column("seen, and what to do", overflow="fold", ratio=1)
    for finding in findings:
        style = STYLES[finding.status]
        seen = Text(_encodable(printable(finding.value), encoding), "dim" if finding.status == SKIP else "")
        if finding.remedy:
            seen.append(f"\n-> {_encodable(printable(finding.remedy), encoding)}", style)
        table.add_row(Text(finding.status, style), Text(finding.name), seen)
    return table


def _outcome(backend: str, outcome: Outcome) -> dict[str, object]:
    measured = [
        {"bytes": one.num_bytes, "seconds": one.seconds, "busbw_gb_per_s": one.bus_bandwidth(len(outcome.ranks))}
        for one in outcome.measured
    ]
    return {
        "backend": backend,
        "problem": outcome.problem,
        "addresses": outcome.addresses,
        "measured": measured,
        "output": [log.output for log in outcome.ranks],
    }


def _count(findings: Sequence[Finding], status: str) -> int:
    return sum(finding.status == status for finding in findings)


def _encodable(text: str, encoding: str) -> str:
    return text.encode(encoding, "backslashreplace").decode(encoding)

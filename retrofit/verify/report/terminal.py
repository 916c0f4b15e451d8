"""The report of `retrofit verify` in the terminal: a table of verdicts, each fault in full, the conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from retrofit.verify.verdict import (
    ACCEPTED,
    FAIL,
    INCOMPLETE,
    INTERNAL_ERROR,
    NOT_APPLICABLE,
    NOT_JUDGED,
    PASS,
    Report,
    Verdict,
    cause_heading,
    count,
    overall_status,
    printable,
)

from .conclusion import conclusion, meaning
from .faults import Fault, faults
from .remedies import remedy

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule

STYLES = {
    PASS: "green",
    FAIL: "bold red",
    ACCEPTED: "yellow",
    NOT_APPLICABLE: "dim",
    INTERNAL_ERROR: "bold red",
    INCOMPLETE: "bold yellow",
    NOT_JUDGED: "bold yellow",
}
WORDS = {NOT_APPLICABLE: "n/a"}  # the other words are short enough for a column
FIRST_COLUMN = 10  # characters: "  explains"
MAX_WIDTH = 120  # longer lines are hard to read


def print_report(report: Report, causes: Mapping[str, Rule], console: Console | None = None) -> None:
    """Print `report`: what is in order first, the faults last, where the eye is when the command has ended.

    Lines fit the terminal, 80 columns where there is none. Colour only repeats what the words say, and no line is
    drawn with characters that a CI log would garble.
    """
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    noted = [verdict for verdict in _with(NOT_APPLICABLE, report) if verdict.note]
    without = [verdict for verdict in _with(NOT_APPLICABLE, report) if not verdict.note]
    others = [*_with(PASS, report), *_with(ACCEPTED, report), *noted]
    if others or without:
        console.print(_table(others, without, console.encoding), width=width)
        console.print()
    for fault in faults(report.verdicts):
        console.print(_fault(fault, report.dialect, causes, console.encoding), width=width)
        console.print()
    for verdict in _with(INTERNAL_ERROR, report):
        console.print(_text(f"{verdict.summary}: {verdict.value}\n{verdict.note}", console.encoding))
    for figure in report.own_figures:
        console.print(
            _text(f"rank 0's own share, not the figure of one process: {figure}", console.encoding), width=width
        )
    if meaning(report):
        console.print(_text(meaning(report), console.encoding, "dim"), width=width)
    style = STYLES[overall_status(report.verdicts)]
    last = _text(conclusion(report), console.encoding, f"bold {style}")
    if console.is_terminal:
        console.print(last, width=width, overflow="fold")
    else:  # a log is searched by line
        console.print(last, soft_wrap=True)


def _with(status: str, report: Report) -> list[Verdict]:
    return [verdict for verdict in report.verdicts if verdict.status == status]


def _table(verdicts: Iterable[Verdict], without: Sequence[Verdict], encoding: str) -> Table:
    """Return the checks that have something to say, and in one line those that had nothing to judge."""
    table = _grid(show_header=True)
    table.columns[0].header, table.columns[1].header = "status", "check"
    table.columns[1].ratio = 2
    table.add_column("found", overflow="fold", ratio=3)
    for verdict in verdicts:
        step = "" if verdict.step is None else f", first at step {verdict.step}"
        found = _text(verdict.summary + step, encoding)
        if verdict.note:
            found.append_text(_text(f"\n{verdict.note}", encoding, "dim"))
        table.add_row(_word(verdict.status), _text(verdict.title, encoding), found)
    if without:
        names = ", ".join(verdict.check for verdict in without)
        title = f"{count(len(without), 'check')} without anything to judge"
        table.add_row(_word(NOT_APPLICABLE), title, _text(names, encoding))
    return table


def _fault(fault: Fault, dialect: str, causes: Mapping[str, Rule], encoding: str) -> Table:
    """Return what is wrong and, under it, all that is known about it."""
    verdict = fault.verdict
    rule = causes.get(verdict.cause or "")
    heading = cause_heading(verdict.cause, causes) if verdict.cause else ""
    rows = (
        ("where", verdict.place),
        ("value", verdict.value),
        ("step", "" if verdict.step is None else f"{verdict.step} is the first optimizer step where it broke"),
        ("cause", f"{heading}: {rule.why}" if rule else heading),
        ("remedy", remedy(rule, dialect) if rule else ""),
        ("note", verdict.note),
        ("check", f"{verdict.check}: {verdict.title}"),
        ("explains", ", ".join(other.check for other in fault.explains)),
    )
    grid = _grid()
    grid.add_row(_word(FAIL), _text(verdict.summary, encoding, "bold"))
    for label, text in rows:
        if text:
            grid.add_row(Text(f"  {label}", "dim"), _text(text, encoding))
    return grid


def _grid(show_header: bool = False) -> Table:
    """Return a table of two columns without lines; its first column is as wide in every table."""
    table = Table(box=None, show_header=show_header, header_style="dim", padding=(0, 2, 0, 0), pad_edge=False)
    table.expand = True
    table.add_column(min_width=FIRST_COLUMN, max_width=FIRST_COLUMN)
    table.add_column(overflow="fold", ratio=1)
    return table


def _word(status: str) -> Text:
    return Text(WORDS.get(status, status), STYLES[status])


def _text(text: str, encoding: str, style: str = "") -> Text:
    """Return `text` as it is, without mark-up: "[red]" is not a style here, and any terminal can print it."""
    return Text(printable(text).encode(encoding, "backslashreplace").decode(encoding), style)

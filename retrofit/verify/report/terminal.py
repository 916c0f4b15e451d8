"""The report of `retrofit verify` in the terminal: a table of verdicts, each failure in full, the conclusion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    conclusion,
    overall_status,
    printable,
)

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
FIRST_COLUMN = 8  # characters: "ACCEPTED"
MAX_WIDTH = 120  # longer lines are hard to read


def print_report(report: Report, causes: Mapping[str, Rule], console: Console | None = None) -> None:
    """Print `report`: what is in order first, the failures last, where the eye is when the command has ended.

    Lines fit the terminal, 80 columns where there is none. Colour only repeats what the words say, and no line is
    drawn with characters that a CI log would garble.
    """
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    others = [verdict for status in (PASS, NOT_APPLICABLE, ACCEPTED) for verdict in _with(status, report)]
    if others:
        console.print(_table(others, console.encoding), width=width)
        console.print()
    for verdict in _with(FAIL, report):
        console.print(_failure(verdict, causes, console.encoding), width=width)
        console.print()
    for verdict in _with(INTERNAL_ERROR, report):
        console.print(_text(f"{verdict.summary}: {verdict.value}\n{verdict.note}", console.encoding))
    for figure in report.own_figures:
        console.print(
            _text(f"rank 0's own share, not the figure of one process: {figure}", console.encoding), width=width
        )
    style = STYLES[overall_status(report.verdicts)]
    last = _text(conclusion(report), console.encoding, f"bold {style}")
    if console.is_terminal:
        console.print(last, width=width, overflow="fold")
    else:  # a log is searched by line
        console.print(last, soft_wrap=True)


def _with(status: str, report: Report) -> list[Verdict]:
    return [verdict for verdict in report.verdicts if verdict.status == status]


def _table(verdicts: Iterable[Verdict], encoding: str) -> Table:
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
    return table


def _failure(verdict: Verdict, causes: Mapping[str, Rule], encoding: str) -> Table:
    """Return the title of a FAIL and, under it, all that is known about it."""
    cause = causes.get(verdict.cause or "")
    heading = cause_heading(verdict.cause, causes) if verdict.cause else ""
    rows = (
        ("found", verdict.summary),
        ("step", "" if verdict.step is None else f"{verdict.step} is the first optimizer step where it broke"),
        ("value", verdict.value),
        ("cause", f"{heading}: {cause.why}" if cause else heading),
        ("remedy", cause.remedy if cause else ""),
        ("in torch", cause.in_torch if cause and cause.in_torch != cause.remedy else ""),
        ("note", verdict.note),
    )
    grid = _grid()
    grid.add_row(_word(FAIL), _text(verdict.title, encoding, "bold"))
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

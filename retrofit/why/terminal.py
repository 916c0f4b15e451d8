"""The card of a run in the terminal: tables first, the causes and the speed-up last, where the eye is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .analysis.causes import Cause, causes_of
from .analysis.picture import Picture
from .analysis.remedies import Remedy, remedies_for
from .analysis.waterfall import Row, waterfall
from .report import headline

BAR = 20  # characters of the longest bar
MAX_WIDTH = 120  # longer lines are hard to read


def print_card(picture: Picture, console: Console | None = None) -> None:
    """Print what is known of a run. Lines fit the terminal, 80 columns where there is none."""
    console = console or Console()
    width = min(console.width, MAX_WIDTH)
    causes = causes_of(picture)
    console.print(_parts(waterfall(picture)), width=width)
    remedies = remedies_for(picture, causes)
    if remedies:
        console.print(_remedies(picture, remedies), width=width)
    console.print(_causes(causes), width=width)
    console.print(Text(headline(picture), style="bold"), width=width)


def _parts(rows: Sequence[Row]) -> Table:
    whole = sum(row.seconds for row in rows)
    is_compared = any(row.lost is not None for row in rows)
    table = _table("part of a step", "ms", "%", *(["lost ms"] if is_compared else []))
    table.add_column()
    for row in rows:
        lost = [f"{1e3 * (row.lost or 0.0):.1f}"] if is_compared else []
        bar = "#" * max(0, round(BAR * row.seconds / whole))
        table.add_row(row.name, f"{1e3 * row.seconds:.1f}", f"{100 * row.seconds / whole:.1f}", *lost, bar)
    total = [f"{1e3 * sum(row.lost or 0.0 for row in rows):.1f}"] if is_compared else []
    table.add_row("all", f"{1e3 * whole:.1f}", "100.0", *total, "")
    if is_compared:
        table.caption = "lost: more than one process needs for as many samples as a rank has"
        table.caption_justify = "left"
    return table


def _remedies(picture: Picture, remedies: Sequence[Remedy]) -> Table:
    table = _table("remedy, each alone", "saves ms", "%")
    table.add_column("predicted from")
    for remedy in remedies:
        share = 100 * remedy.seconds / picture.seconds
        table.add_row(remedy.what, f"{1e3 * remedy.seconds:.1f}", f"{share:.1f}", remedy.basis)
    return table


def _causes(causes: Sequence[Cause]) -> Table | Text:
    if not causes:
        return Text("no cause is found: the ranks are even, and nothing holds them up\n", style="green")
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold red")
    table.add_column()
    for cause in causes:
        table.add_row(cause.name, f"{cause.summary}\n{cause.evidence}")
    table.add_row("", "")
    return table


def _table(first: str, *numbers: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table

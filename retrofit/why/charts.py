"""The figures of the page: one step of all ranks as it went, and the parts of a step, with those of one process."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import TYPE_CHECKING

from retrofit.verify.report.svg import COLOURS, as_svg

from .analysis.balance import CommonStep
from .analysis.picture import Picture
from .analysis.steps import Step
from .analysis.waterfall import COMMUNICATION, LATENESS, REST, ROWS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008: they can be told apart on white and on black.
PART_COLOURS = {
    "data": "#56b4e9", "forward and loss": "#009e73", "backward": "#0072b2", "gradients and optimizer": "#cc79a7",
    "printing and logging": "#e69f00", "checkpoints": "#f0e442", "reads from the GPU": "#b07aa1",
    "after the step": "#9c755f", LATENESS: "#808890", COMMUNICATION: "#d55e00", REST: "#c8ccd2",
}  # fmt: skip
PART_OF = {phase: name for name, phases in ROWS.items() for phase in phases}
MOST_RANKS = 32  # in the figure of one step
CELLS = 1200  # that a step is divided into, in the figure
WIDE = 12.6  # inches; both columns of the page
ROW_HEIGHT = 0.34  # inches


def timeline(picture: Picture) -> str:
    """Return a step of median length: what each rank does when, and where it waits for the others."""
    middle = median(step.seconds for step in picture.steps)
    step = min(picture.steps, key=lambda one: abs(one.seconds - middle))
    shown = min(len(step.ranks), MOST_RANKS)
    label = "One step of all ranks"
    return as_svg(lambda figure: _timeline(figure, step, shown), 1.3 + ROW_HEIGHT * shown, "timeline", label, WIDE)


def parts(picture: Picture, rows: Sequence[Row]) -> str:
    """Return the parts of a step as bars, with those of one process for as many samples."""
    height = 1.0 + ROW_HEIGHT * len(rows)
    return as_svg(lambda figure: _parts(figure, picture, rows), height, "parts", "Parts of a step", WIDE)


def _timeline(figure: Figure, step: CommonStep, shown: int) -> None:
    axes = figure.add_subplot()
    start = min(one.start for one in step.ranks)
    used: set[str] = set()
    for rank, own in enumerate(step.ranks[:shown]):
        for name, begin, end in _visible(own):
            _bar(axes, rank, begin - start, end - start, name, used)
        for place, meeting in enumerate(own.meetings):
            last = max(other.meetings[place].issued for other in step.ranks)
            waited = max(meeting.came, min(last, meeting.left))
            _bar(axes, rank, meeting.came - start, waited - start, LATENESS, used)
            _bar(axes, rank, waited - start, meeting.left - start, COMMUNICATION, used)
    axes.set_yticks(range(shown), [f"rank {rank}" for rank in range(shown)])
    axes.invert_yaxis()
    axes.set_xlabel("ms since the step began")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    handles = [axes.barh(0, 0, color=PART_COLOURS[name], label=name) for name in PART_COLOURS if name in used]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))


def _visible(step: Step) -> Iterator[tuple[str, float, float]]:
    """Yield the parts of a step with begin and end, as far as a figure shows them: a step may print a lot."""
    width = step.seconds / CELLS
    cells: list[dict[str, float]] = [defaultdict(float) for _ in range(CELLS)]
    for phase, begin, end in step.spans:
        first, last = (min(CELLS - 1, max(0, int((at - step.start) / width))) for at in (begin, end))
        for cell in range(first, last + 1):
            start = step.start + cell * width
            cells[cell][PART_OF.get(phase, REST)] += min(end, start + width) - max(begin, start)
    names = [max(cell, key=lambda name: cell[name]) if cell else REST for cell in cells]
    place = 0
    for name, own in itertools.groupby(names):
        number = len(list(own))
        yield name, step.start + place * width, step.start + (place + number) * width
        place += number


def _bar(axes: Axes, rank: int, begin: float, end: float, name: str, used: set[str]) -> None:
    if end > begin:
        used.add(name)
        axes.broken_barh(
            [(1e3 * begin, 1e3 * (end - begin))], (rank - 0.36, 0.72), color=PART_COLOURS[name], linewidth=0
        )


def _parts(figure: Figure, picture: Picture, rows: Sequence[Row]) -> None:
    axes = figure.add_subplot()
    places = range(len(rows))
    several, thick = f"{picture.world_size} processes", 0.38
    is_compared = rows[0].single is not None
    offset = thick / 2 if is_compared else 0.0
    axes.barh(
        [place - offset for place in places], [1e3 * row.seconds for row in rows], thick,
        color=COLOURS["many"], label=several,
    )  # fmt: skip
    if is_compared:
        alone = [1e3 * (row.single or 0.0) for row in rows]
        axes.barh([place + offset for place in places], alone, thick, color=COLOURS["one"], label="1 process")
        axes.legend(loc="lower right")
    axes.set_yticks(places, [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms in a step, for as many samples as a rank has")
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)

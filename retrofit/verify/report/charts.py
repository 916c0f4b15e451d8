"""The figures of the report as inline SVG: loss, differences, learning rate, and which rank drew which sample."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from retrofit.verify.verdict import FAIL, EpochCoverage, Report, count

from .svg import COLOURS, as_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAIRS = (("loss_1", "loss_n"), ("difference", "parameter_difference"), ("lr_1", "lr_n"))
# Cells are a picture, which takes no CSS: colours that stand out on white and on black (Okabe and Ito 2008).
RANK_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
NOT_DRAWN, SEVERAL = "#808890", "#d55e00"
HEIGHT = 3.3
FLOOR = 1e-17  # below the rounding of float64: where a log axis shows 0
MAX_CELLS = 400  # samples, or groups of samples, side by side
MAX_EPOCHS = 4
MAX_LABELS = 16  # ranks with a label of their own
ROW = 0.2  # inches


@dataclass(frozen=True)
class Chart:
    """One figure with its words; `svg` is empty when nothing was recorded, and `text` then says so."""

    title: str
    text: str
    svg: str


def draw_charts(report: Report) -> list[Chart]:
    """Return the figures of `report`, also of one whose runs recorded nothing."""
    several = count(report.world_size, "process", "processes")
    losses, differences, rates = (_curves(report, one, two) for one, two in PAIRS)
    labels = ("1 process", several)
    recorded = [epoch for epoch in report.coverage if epoch.num_samples]
    map_height = max(HEIGHT, 0.75 + sum(_height(epoch) + 0.55 for epoch in recorded[:MAX_EPOCHS]))
    shown = f"; the first {MAX_EPOCHS} of {len(recorded)} epochs" if len(recorded) > MAX_EPOCHS else ""
    return [
        _chart(
            "Loss",
            f"Loss of each optimizer step with 1 process and with {several}.",
            lambda figure: _lines(figure, report, losses, labels, "loss"),
            any(losses),
        ),
        _chart(
            "Difference",
            "Relative difference after each optimizer step; 0 is drawn at the bottom.",
            lambda figure: _differences(figure, report, differences),
            any(differences),
        ),
        _chart(
            "Learning rate",
            f"Learning rate of each optimizer step with 1 process and with {several}.",
            lambda figure: _lines(figure, report, rates, labels, "learning rate"),
            any(rates),
            height=min(map_height, 5.0),  # its neighbour on the page
        ),
        _chart(
            "Samples by rank",
            f"Which rank drew which sample of the data set, and how many samples that is{shown}.",
            lambda figure: _coverage(figure, recorded[:MAX_EPOCHS]),
            bool(recorded),
            height=map_height,
        ),
    ]


def _curves(report: Report, *names: str) -> list[list[float]]:
    values = (report.curves.get(name) for name in names)
    return [[float(one) for one in value] if isinstance(value, Sequence) else [] for value in values]


def _chart(title: str, text: str, draw: Callable[[Figure], None], recorded: bool, height: float = HEIGHT) -> Chart:
    if not recorded:
        return Chart(title, "Nothing was recorded: a run failed too early, or the script has nothing of the kind.", "")
    prefix = re.sub(r"\W+", "-", title.lower())
    return Chart(title, text, as_svg(draw, height, prefix, f"{title}. {text}"))


def _lines(figure: Figure, report: Report, curves: Sequence[list[float]], labels: Sequence[str], unit: str) -> None:
    """Draw 1 process as a broad pale line and N as a thin one on it: both are seen where they agree."""
    axes = figure.add_subplot()
    styles: tuple[dict[str, Any], ...] = (
        {"color": COLOURS["one"], "linewidth": 4.5, "alpha": 0.55, "solid_capstyle": "round"},
        {"color": COLOURS["many"], "linewidth": 1.4, "marker": "o", "markersize": 2.4},
    )
    for values, label, style in zip(curves, labels, styles):
        if len(values) > 60:
            style["marker"] = ""
        if values:
            axes.plot([v if math.isfinite(v) else math.nan for v in values], label=label, **style)
    axes.set_ylabel(unit)
    _finish(axes, report, curves)


def _differences(figure: Figure, report: Report, curves: Sequence[list[float]]) -> None:
    """Draw both differences on a log axis with the tolerance; zeros are drawn at the floor, where the axis says 0."""
    axes = figure.add_subplot()
    tolerance = report.curves.get("tolerance")
    limit = tolerance if isinstance(tolerance, (int, float)) and 0 < tolerance < math.inf else None
    seen = [v for values in curves for v in values if 0 < v < math.inf] + ([limit] if limit else [])
    floor = min(FLOOR, 10.0 ** (math.floor(math.log10(min(seen, default=1.0))) - 1))
    styles: tuple[dict[str, Any], ...] = (
        {"color": COLOURS["loss"], "marker": "o"},
        {"color": COLOURS["parameters"], "marker": "s"},
    )
    for values, label, style in zip(curves, ("loss", "parameters"), styles):
        if len(values) > 60:
            style["marker"] = ""
        if values:
            shown = [max(v, floor) if math.isfinite(v) else math.nan for v in values]
            axes.plot(shown, label=label, linewidth=1.4, markersize=2.8, clip_on=False, **style)
    if limit:
        axes.axhline(
            limit,
            color=COLOURS["ink"],
            linewidth=1.2,
            linestyle="--",
            label=f"tolerance {limit:g}".replace("e-0", "e-"),
        )
    _log_axis(axes, floor, max([*seen, 10 * floor]))
    axes.set_ylabel("relative difference")
    _finish(axes, report, curves)


def _log_axis(axes: Axes, floor: float, top: float) -> None:
    """Scale y from `floor`, labelled 0, to above `top`, with a few powers of ten between."""
    first, last = round(math.log10(floor)), math.ceil(math.log10(top) + 0.2)
    every = max(1, math.ceil((last - first) / 7))
    powers = range(last, first, -every)
    axes.set_yscale("log")
    axes.set_yticks([floor, *(10.0**power for power in powers)])
    axes.set_yticklabels(["0", *("1" if power == 0 else f"1e{power}" for power in powers)])
    axes.minorticks_off()
    axes.set_ylim(floor, 10.0**last)


def _finish(axes: Axes, report: Report, curves: Sequence[list[float]]) -> None:
    """Add what every curve shares: the axis of steps, values that are not numbers, the first failure, the legend."""
    from matplotlib.ticker import MaxNLocator

    steps = sorted({step for values in curves for step, value in enumerate(values) if not math.isfinite(value)})
    if steps:
        top = [0.97] * len(steps)
        style: dict[str, Any] = {"color": COLOURS["failure"], "marker": "x", "linestyle": "", "markersize": 5}
        axes.plot(steps, top, transform=axes.get_xaxis_transform(), label="NaN or infinite", **style)
    failed = (verdict.step for verdict in report.verdicts if verdict.status == FAIL)
    first = min((step for step in failed if step is not None), default=None)
    length = max(len(values) for values in curves)
    if first is not None and first < length:
        label = f"first failure: step {first}"
        axes.axvline(first, color=COLOURS["failure"], linewidth=1.2, linestyle=":", label=label)
    margin = 0.02 * length
    axes.set_xlim(-margin, max(length - 1, 1) + margin)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimizer step")
    axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncol=4)


def _coverage(figure: Figure, epochs: Sequence[EpochCoverage]) -> None:
    """Draw one map per epoch, one above the other."""
    grid = figure.add_gridspec(len(epochs), 1, height_ratios=[_height(epoch) for epoch in epochs])
    for place, epoch in enumerate(epochs):
        axes = figure.add_subplot(grid[place])
        _coverage_map(axes, epoch)
        axes.set_title(f"epoch {place + 1}", loc="left", fontweight="bold")
    axes.set_xlabel("sample index")


def _row_height(epoch: EpochCoverage) -> float:
    return min(ROW, MAX_LABELS * ROW / max(1, len(epoch.rank_of_sample)))


def _height(epoch: EpochCoverage) -> float:
    return len(epoch.rank_of_sample) * _row_height(epoch) + 2 * ROW


def _coverage_map(axes: Axes, epoch: EpochCoverage) -> None:
    """Draw a row per rank, one of the samples that no rank drew and one of those drawn more than once.

    A cell is a sample, or a group of neighbours where there are many: the more of them, the stronger its colour.
    """
    from matplotlib.ticker import MaxNLocator

    rows, size = _coverage_rows(epoch)
    width = math.ceil(size / MAX_CELLS)
    # With many ranks their rows are thin; the two that show a fault stay as high as their words.
    height = _row_height(epoch)
    repeat = [1] * (len(rows) - 2) + [round(ROW / height)] * 2
    cells = [_cells(samples, colour, size, width) for _, colour, samples in rows]
    picture = [row for row, times in zip(cells, repeat) for _ in range(times)]
    extent = (-0.5, len(cells[0]) * width - 0.5, len(picture), 0)
    axes.set_facecolor(COLOURS["track"])
    axes.grid(False)
    axes.imshow(picture, extent=extent, aspect="auto", interpolation="none")  # "none": cell by cell, as it is
    axes.set_xlim(-0.5, size - 0.5)
    ends = list(itertools.accumulate(repeat))
    for end in ends[:-1] if height == ROW else ends[-3:-1]:
        axes.axhline(end, color=COLOURS["card"], linewidth=2.5)
    middles = [end - times / 2 for end, times in zip(ends, repeat)]
    _label_rows(axes, middles, [name for name, _, _ in rows], [len(samples) for _, _, samples in rows])
    axes.xaxis.set_major_locator(MaxNLocator(7, integer=True))
    axes.xaxis.set_major_formatter("{x:.0f}")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _cells(samples: Sequence[int], colour: str, size: int, width: int) -> list[tuple[float, ...]]:
    """Return an RGBA cell per group of `width` of the `size` samples: the share that is in `samples`."""
    from matplotlib.colors import to_rgba

    drawn = [0] * math.ceil(size / width)
    for sample in samples:
        drawn[sample // width] += 1
    shares = (number / min(width, size - cell * width) for cell, number in enumerate(drawn))
    # Even a single sample among hundreds has to be seen.
    return [to_rgba(colour, 0.45 + 0.55 * share if share else 0.0) for share in shares]


def _label_rows(axes: Axes, middles: Sequence[float], names: Sequence[str], numbers: Sequence[int]) -> None:
    """Name the rows on the left and write their number of samples on the right; of many ranks, some."""
    ranks = len(names) - 2
    labelled = [*range(0, ranks, max(1, math.ceil(ranks / MAX_LABELS))), ranks, ranks + 1]
    axes.set_yticks([middles[row] for row in labelled])
    axes.set_yticklabels([names[row] for row in labelled])
    axes.tick_params(axis="y", length=0)
    for row in labelled:
        axes.text(1.01, middles[row], f"{numbers[row]}", transform=axes.get_yaxis_transform(), va="center")


def _coverage_rows(epoch: EpochCoverage) -> tuple[list[tuple[str, str, list[int]]], int]:
    """Return (name, colour, samples) of every row, and the number of samples, counting drawn ones beyond the end."""
    ranks = epoch.rank_of_sample
    size = max([epoch.num_samples, *(max(samples) + 1 for samples in ranks.values() if samples)])
    times = [0] * size
    for samples in ranks.values():
        for sample in samples:
            times[sample] += 1
    rows = [
        (f"rank {rank}", RANK_COLOURS[place % len(RANK_COLOURS)], sorted(set(samples)))
        for place, (rank, samples) in enumerate(sorted(ranks.items()))
    ]
    not_drawn = [sample for sample, number in enumerate(times) if number == 0]
    several = [sample for sample, number in enumerate(times) if number > 1]
    return [*rows, ("nobody", NOT_DRAWN, not_drawn), ("more than once", SEVERAL, several)], size

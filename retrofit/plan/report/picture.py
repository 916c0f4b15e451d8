"""A picture of the speed-up over the number of GPUs, with the bounds of the guides' formulas."""

from __future__ import annotations

from pathlib import Path

from retrofit.plan.plan import Plan

APART = 0.045  # powers of 2, from one strategy to the next
# Okabe and Ito 2008: they can be told apart on white and on black.
COLOURS = ("#0072b2", "#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00")


def draw(plan: Plan, path: Path) -> None:
    """Write the picture; the ending of the file's name says its kind (.png, .svg, .pdf). Raises OSError, ValueError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    axes = figure.add_subplot()
    gpus = [bound.ranks for bound in plan.bounds]
    axes.plot(gpus, gpus, color="#999999", linewidth=1, linestyle=":", label="as many times as GPUs")
    if plan.keeps_batch:
        bound = [one.amdahl for one in plan.bounds]
        axes.plot(gpus, bound, color="#666666", linewidth=1, linestyle="--", label="Amdahl's law")
    else:
        bound = [plan.alone.seconds * one.ranks / one.seconds for one in plan.bounds]
        axes.plot(gpus, bound, color="#666666", linewidth=1, linestyle="--", label="T/N + alpha + beta M")
    names = list(dict.fromkeys(one.strategy.name for one in plan.predictions))
    for place, (name, colour) in enumerate(zip(names, COLOURS)):
        own = [one for one in plan.predictions if one.strategy.name == name]
        speedups = [plan.speedup(one) for one in own]
        shift = 2 ** ((place - (len(names) - 1) / 2) * APART)  # intervals do not hide each other
        low = [speed - speed * one.seconds / one.high for speed, one in zip(speedups, own)]
        high = [speed * one.seconds / one.low - speed for speed, one in zip(speedups, own)]
        places = [one.gpus * shift for one in own]
        axes.errorbar(places, speedups, [low, high], color=colour, marker="o", markersize=4, linewidth=1, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(gpus, [str(number) for number in gpus])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("GPUs")
    axes.set_ylabel("speed-up against one process")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=130)

"""The picture of scaling.py: speed-ups as bars, with the range of the rounds and the ideal."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Union

COLOURS = {1: "#9db8d2", 2: "#1f6fb4"}
WIDTH = 0.38
Bar = tuple[str, int, Union[list[float], str]]  # strategy, processes or GPUs, speed-ups by round or why there are none


def plot(path: Path, bars: Sequence[Bar], unit: str, title: str) -> None:
    """Draw the speed-ups over a single process or GPU. `unit`: what is counted, "processes" or "GPUs"."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    strategies = list(dict.fromkeys(strategy for strategy, _, _ in bars))
    figure, axes = plt.subplots(figsize=(8, 4.6), layout="constrained")
    for strategy, devices, found in bars:
        place = strategies.index(strategy) + _shift(strategy, devices, bars)
        if isinstance(found, str):
            axes.text(place, 0.05, found.replace(": ", ":\n"), rotation=90, ha="center", va="bottom", fontsize=8)
            continue
        middle = statistics.median(found)
        spread = [[middle - min(found)], [max(found) - middle]]
        axes.bar(place, middle, WIDTH, color=COLOURS[devices], yerr=spread, capsize=4, ecolor="#333333")
        label = {"facecolor": "white", "edgecolor": "none", "pad": 1}  # the ideal lines are drawn below it
        axes.text(place, max(found) + 0.06, f"{middle:.2f}", ha="center", va="bottom", fontsize=9, bbox=label)
    lines = [axes.axhline(n, color=COLOURS[n], linestyle="--", linewidth=1.2, zorder=0) for n in COLOURS]
    axes.set_xticks(range(len(strategies)), strategies)
    axes.set_xlabel("strategy")
    axes.set_ylabel("speed-up over single (images/s)")
    axes.set_ylim(0, max(2.4, 1.12 * max((max(f) for _, _, f in bars if not isinstance(f, str)), default=0)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("\n".join(textwrap.wrap(title, 105)), fontsize=8.5, loc="left")
    patches = [Patch(color=COLOURS[n]) for n in COLOURS]
    one = {"processes": "process", "GPUs": "GPU"}[unit]
    names = [f"1 {one}", f"2 {unit}", "ideal for 1", "ideal for 2 (bars: median, whiskers: range of the rounds)"]
    figure.legend([*patches, *lines], names, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _shift(strategy: str, devices: int, bars: Sequence[Bar]) -> float:
    """Return how far a bar is from its strategy's middle: next to the other one, if there is another."""
    alone = sum(name == strategy for name, _, _ in bars) == 1
    return 0.0 if alone else (devices - 1.5) * (WIDTH + 0.03)

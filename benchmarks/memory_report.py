"""The page and the picture of memory_per_rank.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

ROLES = ("parameters", "gradients", "optimizer")
COLOURS = ("#1f6fb4", "#e08a1e", "#8a8a8a")
Figures = dict[str, dict[str, dict[str, float]]]  # strategy -> theory, peak, between -> role -> bytes per parameter

PAGE = """\
# What a rank holds, strategy by strategy

Written by `torchrun --nproc_per_node={world_size} --standalone benchmarks/memory_per_rank.py --width {width} --depth \
{depth} --output docs/memory.md --plot docs/memory.png`, measured with Python {python}, torch {torch} and deepspeed \
{deepspeed} on {cpus} CPU cores (gloo): a ViT of {num_params:,} parameters in {depth} equal layers, AdamW, \
{world_size} ranks, wrapped as by `rd.distribute_model` and `rd.strategies.wrap_optimizer`.

Bytes per parameter and rank, as parameters + gradients + optimizer state = sum, of the rank that holds most.
`theory` is that of Rajbhandari et al. 2020 (arXiv 1910.02054) with all gradients there; `peak` the highest sum at any
sample of a step (each module's forward and backward, each gradient, around the optimizer's step); `between` what is
left after `zero_grad`. Activations and temporaries are not counted, nor are buffers that live within one collective.
{picture}
| strategy | theory | peak | between steps | peak / DDP's theory | held beyond the theory |
|---|---|---|---|---|---|
{rows}

DeepSpeed's buckets are set to a fiftieth of the parameters, and ZeRO-3 gives every gathered parameter back at once
(`stage3_max_reuse_distance` and `stage3_max_live_parameters` 0): by its defaults, 5e8 and 1e9 elements, a model of this
size is one bucket, and stays gathered as a whole from forward to backward.

The guides say that ZeRO-2 halves the memory and ZeRO-3 leaves a quarter. For AdamW on 4 ranks the theory gives exactly
that against DDP's 16 bytes: half for DeepSpeed's ZeRO-2 (8, with float32 masters), and a quarter for full sharding
without masters (4, FSDP FULL_SHARD); DeepSpeed's ZeRO-3 keeps masters also of float32 parameters (5).
"""


def page(results: Figures, facts: dict[str, Any], reasons: dict[str, str], picture: str | None) -> str:
    """Return the Markdown page; `reasons` says for each strategy what it holds beyond the theory."""
    rows = "\n".join(row(name, figures, reasons[name]) for name, figures in results.items())
    shown = f"\n![bytes per parameter and rank]({picture})\n" if picture else ""
    return PAGE.format(rows=rows, picture=shown, cpus=os.cpu_count(), **facts)


def row(name: str, figures: dict[str, dict[str, float]], reason: str) -> str:
    cells = [terms(figures[moment]) for moment in ("theory", "peak", "between")]
    ratio = sum(figures["peak"].values()) / 16
    return f"| {name} | {' | '.join(cells)} | {ratio:.2f} | {reason} |"


def terms(held: dict[str, float]) -> str:
    parts = " + ".join(f"{held[role]:.2f}".rstrip("0").rstrip(".") for role in ROLES)
    return f"{parts} = {sum(held.values()):.2f}"


def draw(results: Figures, world_size: int, path: Path) -> None:
    """Draw peak and between as stacked bars, with a mark where the theory is."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(results)
    figure, axes = plt.subplots(figsize=(8, 0.55 * len(names) + 1.4), layout="constrained")
    for number, name in enumerate(names):
        for moment, offset, alpha in (("peak", -0.19, 1.0), ("between", 0.19, 0.45)):
            left = 0.0
            for role, colour in zip(ROLES, COLOURS):
                size = results[name][moment][role]
                label = role if number == 0 and moment == "peak" else None
                axes.barh(number + offset, size, 0.34, left=left, color=colour, alpha=alpha, label=label)
                left += size
        theory = sum(results[name]["theory"].values())
        label = "theory" if number == 0 else None
        axes.plot([theory, theory], [number - 0.4, number + 0.4], color="black", linewidth=2, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_title(f"{world_size} ranks, AdamW; dark: peak of a step, pale: between steps", fontsize=10)
    axes.set_xlabel("bytes per parameter and rank")
    axes.grid(axis="x", color="#dddddd", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)

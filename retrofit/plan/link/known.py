"""Links by name: what their data sheets promise, less what collective calls usually lose of it."""

from __future__ import annotations

from pathlib import Path

from .link import Link, Overlap, read_link

GB = 1e9
# Seconds per hop; bytes per second over the slowest connection, as `nccl-tests` prints bus bandwidth.
KNOWN = {
    "nvlink": (4e-6, 300 * GB),  # NVLink 4 between the GPUs of one machine
    "pcie5": (8e-6, 40 * GB),
    "pcie4": (8e-6, 20 * GB),
    "pcie3": (10e-6, 10 * GB),
    "400gbe": (15e-6, 45 * GB),  # InfiniBand or RoCE, one card per machine
    "100gbe": (20e-6, 11 * GB),
    "25gbe": (30e-6, 2.8 * GB),
    "10gbe": (50e-6, 1.1 * GB),
    "1gbe": (100e-6, 0.115 * GB),
    "100mbit": (200e-6, 0.0115 * GB),
}
OVERLAP = Overlap(computation=0.95, call=1.0)  # assumed for GPUs: a call takes some of the processors


def link_of(text: str) -> Link:
    """Return the link of `--link`: a name, a file, or `ALPHA,BETA` (seconds per hop, seconds per byte).

    Raises ValueError.
    """
    if text in KNOWN:
        alpha, rate = KNOWN[text]
        return Link(text, alpha, 1 / rate, has_trees=True, overlap=OVERLAP)
    if Path(text).is_file():
        return read_link(Path(text))
    try:
        alpha, beta = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--link {text}: not measured, {', '.join(KNOWN)}, a file of `python -m retrofit.plan.link`, or ALPHA,BETA "
            "in seconds per hop and seconds per byte, such as 30e-6,4e-10"
        ) from None
    if alpha < 0 or beta < 0:
        raise ValueError(f"--link {text}: neither number may be negative")
    return Link(f"alpha {alpha:g} s, beta {beta:g} s per byte", alpha, beta, has_trees=True, overlap=OVERLAP)


def slower(inside: Link, between: Link) -> Link:
    """Return the link of a ring that goes through both: the slower connection decides."""
    return between if between.beta >= inside.beta else inside

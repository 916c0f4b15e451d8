"""The card of a run: on the terminal, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from .analysis.causes import Cause, causes_of
from .analysis.picture import Picture
from .analysis.remedies import Remedy, remedies_for
from .analysis.waterfall import Row, waterfall

BAR = 24  # characters of the longest bar


def card(picture: Picture) -> dict[str, Any]:
    """Return everything that is said of a run, in seconds, for programs."""
    causes = causes_of(picture)
    return {
        "world_size": picture.world_size,
        "steps": len(picture.steps),
        "step_s": picture.seconds,
        "single_step_s": picture.single_seconds or None,
        "speedup": picture.speedup,
        "waterfall": [{**asdict(row), "lost": row.lost} for row in waterfall(picture)],
        "causes": [asdict(cause) for cause in causes],
        "remedies": [
            {**asdict(remedy), "step_s": remedy.step_seconds(picture)} for remedy in remedies_for(picture, causes)
        ],
    }


def lines_of(picture: Picture) -> Iterator[str]:
    """Yield the lines of the card for a terminal; the causes come last, where the eye is."""
    causes = causes_of(picture)
    yield from _rows(picture, waterfall(picture))
    yield ""
    yield from _remedies(picture, remedies_for(picture, causes))
    yield from _causes(picture, causes)
    yield _headline(picture)


def _headline(picture: Picture) -> str:
    step = (
        f"{picture.world_size} processes: {1e3 * picture.seconds:.1f} ms per step, {len(picture.steps)} steps compared"
    )
    if picture.speedup is None:
        return f"{step}; the speed-up is not known: one process was not run, or batches have no samples to count"
    return (
        f"{picture.speedup:.2f} times as fast as one process (at most {picture.world_size} times). {step}; "
        f"one process: {1e3 * picture.single_seconds:.1f} ms"
    )


def _rows(picture: Picture, rows: Sequence[Row]) -> Iterator[str]:
    whole = sum(row.seconds for row in rows)
    yield f"{'part of a step':26}{'ms':>9}{'%':>6}{'lost ms':>9}"
    for row in rows:
        lost = "" if row.lost is None else f"{1e3 * row.lost:.1f}"
        bar = "█" * max(0, round(BAR * row.seconds / whole))
        yield f"{row.name:26}{1e3 * row.seconds:9.1f}{100 * row.seconds / whole:6.1f}{lost:>9}  {bar}".rstrip()
    known = [row.lost for row in rows if row.lost is not None]
    total = f"{1e3 * sum(known):.1f}" if known else ""
    yield f"{'all':26}{1e3 * whole:9.1f}{100:6.1f}{total:>9}"
    if known:
        yield "lost: more than one process needs for as many samples as a rank has"


def _remedies(picture: Picture, remedies: Sequence[Remedy]) -> Iterator[str]:
    if not remedies:
        return
    yield f"{'remedy, each alone (predicted)':58}{'saves ms':>9}{'%':>6}"
    for remedy in remedies:
        share = 100 * remedy.seconds / picture.seconds
        yield f"{remedy.what:58}{1e3 * remedy.seconds:9.1f}{share:6.1f}  {remedy.basis}"
    yield ""


def _causes(picture: Picture, causes: Sequence[Cause]) -> Iterator[str]:
    if not causes:
        yield "no cause is found: the ranks are even, and nothing holds them up"
    for cause in causes:
        yield f"{cause.name:16}{cause.summary}"
        yield f"{'':16}{cause.evidence}"
    yield ""

"""The guides' two formulas, without overlap: Amdahl's law, and T = T_single/N + alpha + beta M."""

from __future__ import annotations

from dataclasses import dataclass

from retrofit.plan.link.link import ALL_REDUCE, Link
from retrofit.plan.profile.profile import Profile


@dataclass(frozen=True)
class Bounds:
    """What the formulas say of `ranks` ranks."""

    ranks: int
    parallel: float  # P: the share of a step that is divided when its batch is (data, forward, backward)
    amdahl: float  # speed-up at most, where all ranks together have the batch of one process
    seconds: float  # T, of a step of the ranks
    alpha: float  # s, all hops
    transfer: float  # s, beta M


def bounds_of(profile: Profile, link: Link, ranks: int) -> Bounds:
    """Return the bounds: T_single is the time that one process needs for the samples of all ranks."""
    parallel = min(1.0, (profile.loading + profile.forward + profile.backward) / profile.seconds)
    amdahl = 1 / ((1 - parallel) + parallel / ranks)
    least = link.seconds(ALL_REDUCE, 4, ranks)
    transfer = link.seconds(ALL_REDUCE, profile.gradient_bytes, ranks) - least
    return Bounds(ranks, parallel, amdahl, profile.seconds + least + transfer, least, transfer)

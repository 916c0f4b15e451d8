"""Random streams that the ranks draw augmentation from."""

from __future__ import annotations

from itertools import combinations

from retrofit.verify.checks.finding import Finding, fail_with, not_made, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Iteration, RankTrace, Runs
from retrofit.verify.verdict import Verdict, not_applicable, passed


def random_streams(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the random streams that the ranks draw augmentation from, at the start of the training."""
    check, title = "random_streams", "each rank augments its samples with random numbers of its own"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    firsts = [rank.training[0] for rank in many.ranks if rank.training]
    if len(firsts) < max(2, many.world_size):
        return not_applicable(check, title, why_not(many, "no training loader was used by several ranks"))
    ends = [_draws(rank) for rank in many.ranks]
    drawn = set().union(*ends)
    if not drawn:
        reason = "loading a sample draws no random numbers"
        return not_applicable(
            check,
            title,
            reason
            if any(_is_watched(rank) for rank in many.ranks)
            else why_not(many, "no training epoch came to its end"),
        )
    used = _streams_in_use(firsts[0], drawn)
    for (first, a), (other, b) in combinations(enumerate(firsts), 2):
        for name in used:
            states = a.begin.streams.get(name), b.begin.streams.get(name)
            if states[0] is not None and states[0] == states[1]:
                summary = f"{ranks_named((first, other))} draw from the same {name} stream while they load samples"
                return fail_with(check, title, Finding(summary, "RF109", value=f"state {states[0]} on both"))
    return passed(check, title, f"samples draw from {', '.join(sorted(drawn))}, which differ on all ranks")


def _draws(rank: RankTrace) -> set[str]:
    return {name for one in rank.training if one.end for name in one.end.draws}


def _is_watched(rank: RankTrace) -> bool:
    return any(one.end is not None for one in rank.training)


def _streams_in_use(iteration: Iteration, drawn: set[str]) -> list[str]:
    """Return the streams that decide what samples draw: loader workers are seeded from one stream of the process."""
    if not iteration.begin.num_workers:
        return sorted(drawn)
    return ["torch" if iteration.begin.streams.get("loader") is None else "loader"]

"""Orders of the samples: every epoch has one of its own, on the ranks as on one process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Iteration, RankTrace, Run, Runs
from retrofit.verify.verdict import Verdict, not_applicable, passed

from .samples import num_repeated, training_datasets, training_of
from .shards import incomparable

FEW = 5  # orders of fewer samples can be equal by chance


def reshuffle(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the orders of two epochs: on the ranks, and without them."""
    check, title = "reshuffle", "every epoch has an order of its own, as on one process"
    reason = not_made(runs, "many", "one") or incomparable(runs)
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    keys = [key for key in training_datasets(many) if many.main.iterations_by_dataset[key][0].begin.is_map]
    if not keys:
        return not_applicable(check, title, why_not(many, "no training loader has an order: the data is a stream"))
    if many.num_epochs < 2:
        return not_applicable(check, title, why_not(many, "one epoch was run; let the script run two (--epochs 2)"))
    if not any(len(epochs) > 1 for key in keys for epochs in _natural(runs, key)):
        return not_applicable(check, title, why_not(runs["one"], "one process does not train on this data twice"))
    for key in keys:
        fault = _order_fault(runs, key)
        if fault is not None:
            return fail_with(check, title, fault)
    shuffled = any(_changes(rank, key) for key in keys for rank in many.ranks)
    if shuffled and any(_shuffles_once(epochs) for key in keys for epochs in _natural(runs, key)):
        note = "one process alone keeps its shuffled order in all epochs: there set_epoch() is not called"
        return passed(check, title, f"orders differ between epochs; {note}")
    return passed(
        check, title, "orders differ between epochs" if shuffled else "the order is fixed, on one process too"
    )


def _natural(runs: Runs, key: str) -> list[list[Iteration]]:
    """Return the epochs of one process, before the change (where it was run) and after it."""
    return [training_of(runs[name].main, key) for name in ("original", "one") if name in runs and runs[name].ranks]


def _order_fault(runs: Runs, key: str) -> Finding | None:
    many = runs["many"]
    natural = _natural(runs, key)
    if any(_repeated_epoch(epochs) is None for epochs in natural if len(epochs) > 1):
        return _repeat_fault(many, key)
    stuck = _stuck_fault(many, key)
    if stuck is not None:
        return stuck
    fixed = natural[-1]
    if len(fixed) < 2 or num_repeated(fixed[0].drawn) or _shuffles_once(fixed):
        return None
    place = {sample: number for number, sample in enumerate(fixed[0].drawn)}
    for rank in many.ranks:
        for epoch, share in enumerate(training_of(rank, key)):
            places = [place[sample] for sample in share.drawn if sample in place]
            falls = sum(b < a for a, b in zip(places, places[1:]))
            if falls > 1:  # the last sample of a padded share is one of the first again
                value = f"rank {rank.rank}, epoch {epoch}: {', '.join(map(str, share.drawn[:FEW]))} ..."
                return Finding("one process keeps an order that the ranks shuffle", "RF102", value=value)
    return None


def _stuck_fault(many: Run, key: str) -> Finding | None:
    """Return a fault for a sampler that shuffles in the same way in all epochs, on one process too.

    One of the script's own counts where set_epoch() would change its order, which nothing calls with another epoch.
    """
    for rank in many.ranks:
        epochs = training_of(rank, key)
        drawn = epochs[0].drawn if epochs else []
        is_shuffled = _is_shuffled(drawn)
        repeat = _repeated_epoch(epochs)
        if (
            repeat is not None
            and is_shuffled
            and len(drawn) >= FEW
            and ("DistributedSampler" in epochs[0].begin.samplers or any(one.begin.follows_epoch for one in epochs))
        ):
            summary = f"epochs {repeat[0]} and {repeat[1]} have the same shuffled order, with one process too"
            shown = ", ".join(map(str, drawn[:FEW]))
            return Finding(summary, "RF101", value=f"rank {rank.rank} begins with {shown} in both")
    return None


def _is_shuffled(drawn: Sequence[Any]) -> bool:
    return any(a > b for a, b in zip(drawn, drawn[1:-1]))  # the last one may be padding


def _shuffles_once(epochs: Sequence[Iteration]) -> bool:
    """Return whether a DistributedSampler shuffles and is never told the epoch.

    On one process many scripts leave that out (`if args.distributed: sampler.set_epoch(epoch)`).
    """
    return (
        len(epochs) > 1
        and "DistributedSampler" in epochs[0].begin.samplers
        and _is_shuffled(epochs[0].drawn)
        and _repeated_epoch(epochs) is not None
    )


def _repeat_fault(many: Run, key: str) -> Finding | None:
    repeats = [_repeated_epoch(training_of(rank, key)) for rank in many.ranks]
    long_enough = [len(training_of(rank, key)[0].drawn) >= FEW for rank in many.ranks]
    for rank, repeat in enumerate(repeats):
        if repeat is not None and (long_enough[rank] or None not in repeats):
            shown = ", ".join(map(str, training_of(many.ranks[rank], key)[0].drawn[:FEW]))
            summary = (
                f"epochs {repeat[0]} and {repeat[1]} have the same order on rank {rank}, on one process they differ"
            )
            return Finding(summary, "RF101", value=f"rank {rank} begins with {shown} in both")
    return None


def _repeated_epoch(epochs: Sequence[Iteration]) -> tuple[int, int] | None:
    """Return the first two epochs with the same order, as far as both are known."""
    for (first, a), (second, b) in combinations(enumerate(epochs), 2):
        known = min(len(a.drawn), len(b.drawn))
        is_same = a.drawn[:known] == b.drawn[:known] and (
            len(a.drawn) == len(b.drawn) or not (a.is_whole and b.is_whole)
        )
        if known and is_same:
            return first, second
    return None


def _changes(rank: RankTrace, key: str) -> bool:
    epochs = training_of(rank, key)
    return len(epochs) > 1 and _repeated_epoch(epochs) is None

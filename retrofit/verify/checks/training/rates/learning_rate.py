"""Learning rates of the optimizer steps against those of one process.

That is any run in one process; where the rate follows from results, the one on the same batches.
"""

from __future__ import annotations

from retrofit.verify.checks.data.global_batch import global_batch_fault
from retrofit.verify.checks.data.shards import shards_fault
from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.ranks_agree import rates_by_rank
from retrofit.verify.evidence import RankTrace, Run, Runs, relative_difference
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .rounded_epochs import rounded_epochs
from .schedules import is_stepped_often, schedule_fault

SAME = 1e-12  # relative: both compute it with the same Python floats
Place = tuple[int, int, int]  # epoch, optimizer, how many-th step of both


def lr(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the learning rates of each epoch, step by step, with those of one process."""
    check, title = "lr", "every step has the learning rate that it has on one process"
    reason = not_made(runs, "many", "one")
    if reason:
        return not_applicable(check, title, reason)
    many, one = runs["many"], runs["one"]
    rates = _rates(many.main)
    compared = set(rates) & set(_rates(one.main))
    if not compared:
        run = many if not many.main.steps else one
        return not_applicable(check, title, why_not(run, "no optimizer step was recorded"))
    fault = lr_fault(runs) or schedule_fault(many, one)
    if fault is not None and fault.undecided:
        return not_applicable(check, title, fault.summary)
    if fault is not None:
        return fail_with(check, title, fault)
    values = [rate for place in compared for rate in rates[place]]
    if not values:
        return not_applicable(check, title, "the script changes its weights without an optimizer")
    span = f"{min(values):g}" if min(values) == max(values) else f"{min(values):g} to {max(values):g}"
    return passed(check, title, f"{span} over {count(len(compared), 'step')}")


def lr_fault(runs: Runs) -> Finding | None:
    """Return the first step with another learning rate, and whether it is scaled or scheduled differently."""
    many, one = runs["many"], runs["one"]
    by_rank = rates_by_rank(many)
    if by_rank is not None:
        return by_rank
    ours, theirs = _rates(many.main), _rates(one.main)
    places = many.main.step_places
    ratios: dict[tuple[int, int], list[float]] = {}  # by optimizer and group
    first: int | None = None
    for step, place in enumerate(places):
        for group, (a, b) in enumerate(zip(ours[place], theirs.get(place, []))):
            if a == b == 0:
                continue
            ratios.setdefault((place[1], group), []).append(a / b if b else float("inf"))
            if first is None and relative_difference(a, b) > SAME:
                first = step
    if first is None or _follows_results(runs, ours):
        return None
    value = _shown(many, first, ours[places[first]], theirs[places[first]])
    factors = {of_group[0] for of_group in ratios.values()}
    factor = next((one for one in factors if relative_difference(one, 1.0) > SAME), 1.0)
    is_scaled = all(relative_difference(one, group[0]) <= 1e-9 for group in ratios.values() for one in group)
    if is_scaled and not is_stepped_often(many, one, factor):
        which = "every learning rate" if len(ratios) == 1 or len(factors) == 1 else "the learning rate of an optimizer"
        return Finding(f"{which} is {factor:g} times that of one process", "RF304", first, value)
    apart = _steps_apart(runs) or rounded_epochs(many, one)
    if apart is not None:
        return Finding(apart, undecided=True)
    return Finding("the learning rate changes at other steps than on one process", "RF305", first, value)


def _follows_results(runs: Runs, ours: dict[Place, list[float]]) -> bool:
    """Return whether one process on the very same batches has these rates: ReduceLROnPlateau, an early stop."""
    if not_made(runs, "reference"):
        return False
    theirs = _rates(runs["reference"].main)
    common = set(ours) & set(theirs)
    pairs = [(a, b) for place in common for a, b in zip(ours[place], theirs[place])]
    return len(common) == len(ours) and all(a == b or relative_difference(a, b) <= SAME for a, b in pairs)


def _steps_apart(runs: Runs) -> str | None:
    """Return why an epoch has another number of steps than on one process, which changes every schedule."""
    fault = shards_fault(runs)
    if fault is not None and fault.cause in ("RF103", "RF104"):
        return "epochs have another number of steps, because they are not split across the ranks (see shards)"
    if global_batch_fault(runs) is not None:
        return "steps do not correspond: they take another number of samples (see global_batch)"
    return None


def _rates(rank: RankTrace) -> dict[Place, list[float]]:
    return {place: step.lr for place, step in zip(rank.step_places, rank.steps)}


def _shown(many: Run, step: int, ours: list[float], theirs: list[float]) -> str:
    a, b = next((a, b) for a, b in zip(ours, theirs) if relative_difference(a, b) > SAME)
    return f"learning rate {a:.6g} with {many.world_size} processes, {b:.6g} with 1"

"""Collective calls: the same ones in the same order on all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import CollectiveCall, UnevenInputs
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .errors import first_failure
from .own_draws import OWN_DRAWS, decided_by_draws

POINT_TO_POINT = ("send", "recv", "isend", "irecv")
OWN_SIZES = ("gather", "scatter", "alltoall")  # operations in which ranks may hold pieces of different sizes


@dataclass(frozen=True)
class Mismatch:
    """The first collective call that not all ranks made; None for a rank that made no further one."""

    number: int
    calls: Sequence[CollectiveCall | None]


def collectives(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the collective calls of the ranks, one by one."""
    check, title = "collectives", "all ranks make the same collective calls in the same order"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    fault = collectives_fault(many) or _fault_of_own_draws(runs)
    if fault is not None:
        return fail_with(check, title, fault)
    calls = min(len(_calls(rank)) for rank in many.ranks)
    if calls == 0 or many.world_size == 1:
        return not_applicable(check, title, why_not(many, "no collective call was made"))
    summary = f"{count(calls, 'call')} on each rank"
    if first_mismatch(many) is not None:
        reason = "one rank failed by itself" if first_failure(many) else "the run was stopped"
        return not_applicable(check, title, f"{summary} are the same, then {reason} (see completes)")
    return passed(check, title, summary)


def collectives_fault(run: Run) -> Finding | None:
    """Return where the ranks' calls part, and why; None when they do not or one rank simply failed."""
    mismatch = first_mismatch(run)
    if mismatch is None:
        return _stuck_together(run) if run.hung else _uneven_and_shortened(run)
    has_ended = None in mismatch.calls
    if has_ended and (first_failure(run) is not None or (not run.hung and _was_stopped(run))):
        return None  # the shorter sequences are a consequence
    step = min((call.step for call in mismatch.calls if call is not None), default=None)
    uneven = uneven_batches(run)
    summary = f"collective call {mismatch.number} is not the same on all ranks"
    if has_ended:
        summary = "some ranks wait for others that make no further collective call"
    return Finding(summary, "RF106" if uneven else "RF402", step, _places_of_ranks(run, mismatch), uneven)


def _fault_of_own_draws(runs: Runs) -> Finding | None:
    fault = collectives_fault(runs[OWN_DRAWS]) if OWN_DRAWS in runs else None
    is_new = fault is not None and fault.cause != "RF106"  # uneven batches are, in that run too, no matter of draws
    return decided_by_draws(fault, runs["many"]) if fault is not None and is_new else None


def first_mismatch(run: Run) -> Mismatch | None:
    """Return the first call that is not the same on all ranks."""
    calls = [_calls(rank) for rank in run.ranks]
    for number, row in enumerate(zip(*calls)):
        if len({_signature(call) for call in row}) > 1:
            return Mismatch(number, row)
    shortest = min(map(len, calls), default=0)
    if any(len(own) > shortest for own in calls):
        return Mismatch(shortest, [own[shortest] if len(own) > shortest else None for own in calls])
    return None


def _calls(rank: RankTrace) -> list[CollectiveCall]:
    """Return the collective calls of all ranks together, without messages between two of them."""
    return [call for call in rank.of(CollectiveCall) if not call.op.startswith(POINT_TO_POINT)]


def _signature(call: CollectiveCall) -> tuple[object, ...]:
    if any(word in call.op for word in OWN_SIZES) and "allgather" not in call.op:
        return (call.op,)
    return call.op, call.numel, call.dtype


def _stuck_together(run: Run) -> Finding:
    places = [f"rank {rank.rank} in {run.stacks.get(rank.rank) or 'an unknown place'}" for rank in run.ranks]
    return Finding("the processes make no progress, after the same collective calls", value="; ".join(places))


def _was_stopped(run: Run) -> bool:
    """Return whether the time was up, or a process was killed: by the system for its memory, or by a crash."""
    return run.timed_out or any(status is not None and status < 0 for status in run.statuses)


def _uneven_and_shortened(run: Run) -> Finding | None:
    """Return a fault when only the shortened training has kept the ranks from running out of batches unevenly."""
    uneven = uneven_batches(run)
    last_ends = [rank.epochs[-1].end for rank in run.ranks if rank.epochs]
    is_shortened = any(end is not None and end.is_capped for end in last_ends)
    if uneven is None or not is_shortened or any(rank.of(UnevenInputs) for rank in run.ranks):
        return None
    return Finding("in an epoch that is run to its end some ranks would wait for others", "RF106", value=uneven)


def _places_of_ranks(run: Run, mismatch: Mismatch) -> str:
    parts = []
    for rank, call in zip(run.ranks, mismatch.calls):
        place = run.stacks.get(rank.rank)
        at = f" at {place}" if place else ""
        if call is None:
            parts.append(
                f"rank {rank.rank} has ended" if rank.exit is not None else f"rank {rank.rank} is elsewhere{at}"
            )
            continue
        sizes = [f"{call.numel} {call.dtype}"] if call.dtype else []
        shown = ", ".join([*sizes, *(["in backward"] if call.in_backward else [])])
        size = f" ({shown})" if shown else ""
        # A call that is not the last was not waited for; the stack is of a later place.
        is_last = run.hung and call is _calls(rank)[-1]
        verb = "waits in" if is_last else "calls"
        parts.append(f"rank {rank.rank} {verb} {call.op} #{mismatch.number}{size}{at if is_last else ''}")
    return "; ".join(parts)


def uneven_batches(run: Run) -> str | None:
    """Return the numbers of batches of the first epoch in which they differ, of those that all ranks have begun."""
    for epoch in range(run.num_epochs):
        passes = [rank.epochs[epoch] for rank in run.ranks]
        is_last = epoch == run.num_epochs - 1
        if all(one.order is not None for one in passes):
            numbers = [len(one.order or []) for one in passes]
        elif all(one.exhausted for one in passes) or (is_last and any(one.exhausted for one in passes)):
            numbers = [len(one.batches) for one in passes]
        else:
            continue
        if len(set(numbers)) > 1:
            shown = ", ".join(map(str, numbers))
            return f"the ranks have {shown} training batches in epoch {epoch}"
    return None

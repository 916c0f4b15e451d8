"""A training that is resumed after its first epoch against the one that was not stopped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from retrofit.verify.checks.data.split import changed_in_place
from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.causes.averaged_weights import averaged_weights
from retrofit.verify.checks.training.differences import tolerance_of
from retrofit.verify.checks.training.ranks_agree import disagreement
from retrofit.verify.checks.training.steps import gradients, loss, parameters
from retrofit.verify.evidence import RankTrace, Run, Runs, flat
from retrofit.verify.verdict import FAIL, NOT_APPLICABLE, Verdict, count, not_applicable, passed

from .continued_steps import (
    ANOTHER_LOSS,
    OTHER_SAMPLES,
    OTHER_WEIGHTS,
    drawn_samples,
    is_of_other_ranks,
    kind_of,
    kinds_of_faults,
    step_fault,
)
from .first_epoch import steps_saved
from .library_order import IN_ORDER, is_of_library, library_note
from .one_process.own_restart import ON_ONE_PROCESS, fails_as_before, shows_original
from .one_process.same_checkpoint import fault_against_one, fault_of_loading, loading_note
from .random_states import random_state_note
from .restored_state import memory_faults, state_faults

OWN_OPTIMIZERS = (
    "between averages of the weights each rank has an optimizer state of its own, and the checkpoint holds that of one"
)
NOT_BEFORE = "not restored by the script before the change either, on one process"
ELSE_RESTORED = "with the order that the samples have without the stop, all else is as without it"
OF_RANK_0 = "rank 0 continues as without the stop, and other ranks with what it has saved, which is not what they had"
NO_STEP = "the resumed script makes no optimizer step"


def resume(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the second epoch of the resumed run with that of the run that was not stopped, on every rank."""
    check, title = "resume", "a resumed training continues as if it had not stopped"
    given = options.reasons.get("resumed", "no arguments that resume were given")
    loading = fault_of_loading(runs, options)
    if loading is not None:
        return fail_with(check, title, loading)
    reason = given if "resumed" not in runs else not_made(runs, "many", "resumed")
    if reason:
        return not_applicable(check, title, reason, note=loading_note(runs, options))
    in_order, as_it_is = runs.get(IN_ORDER), runs["resumed"]
    if in_order is not None and in_order.finished:
        runs = {**runs, "resumed": in_order}
    many, resumed = runs["many"], runs["resumed"]
    error = fails_as_before(runs, resumed, options)
    if error is not None:
        return not_applicable(check, title, f"before the change it does not resume on one process either: {error}")
    if disagreement(many) is not None:
        reason = "the ranks hold different weights, and a checkpoint holds those of one (see ranks_agree)"
        return not_applicable(check, title, reason)
    done = steps_saved(many, resumed)
    if done is None or many.num_steps <= done:
        return not_applicable(check, title, why_not(many, "the training has no second epoch to compare with"))
    if not resumed.num_steps and not resumed.finished:
        return not_applicable(check, title, "the resumed script ended before its first step (see completes)")
    found = [*_faults(runs, done, options)]
    faults = [fault for fault in found if not fault.undecided]
    if found and (not faults or _continues_where_it_was_cut(many, resumed)):
        reason = "epochs are cut after half of the steps, and the script counts steps to find its place; use --steps 0"
        return not_applicable(check, title, reason)
    known: set[str] = _kinds_on_one_process(runs, options) if faults else set()
    own = [fault for fault in faults if not shows_original(runs, options) or kind_of(fault) not in known]
    if faults and not own:
        other = _ranks_apart(resumed, done) or other_number_of_steps(runs, done)
        other = other or fault_against_one({**runs, "resumed": as_it_is}, done, options)
        if other is not None:
            return fail_with(check, title, other)
        return not_applicable(check, title, f"{NOT_BEFORE}: {kind_of(faults[0])}", note=ON_ONE_PROCESS)
    if own and averaged_weights(many) is not None and _is_optimizer_of_another_rank(own[0]):
        return not_applicable(check, title, OWN_OPTIMIZERS)
    parted = _differs_before(runs, options, own[0]) if own else None
    if parted is not None and is_of_other_ranks(many, resumed, done, tolerance_of(many, options)):
        summary = f"{OF_RANK_0}: follows from a training that is not that of one process (see {parted})"
        return fail_with(check, title, replace(own[0], summary=summary, cause=None))
    if own:
        return fail_with(check, title, _noted(own, known))
    if resumed is in_order and not is_of_library(OTHER_SAMPLES, many, as_it_is):
        return not_applicable(check, title, f"{NOT_BEFORE}: {OTHER_SAMPLES}", note=f"{ON_ONE_PROCESS}; {ELSE_RESTORED}")
    steps = min(resumed.num_steps, many.num_steps - done)
    exact = all(_hashes(a, done, steps) == _hashes(b, 0, steps) for a, b in zip(many.ranks, resumed.ranks))
    notes = [
        library_note(resumed) if resumed is in_order else None,
        None if exact else "equal up to rounding, not bit for bit",
        random_state_note(many, resumed, done),
    ]
    return passed(check, title, f"the same samples, losses, rates and weights in {count(steps, 'step')}", joined(notes))


def forgets_order_as_before(verdict: Verdict) -> bool:
    """Return whether this check was not judged since the script before the change loses the samples' order, too."""
    return verdict.status == NOT_APPLICABLE and verdict.summary == f"{NOT_BEFORE}: {OTHER_SAMPLES}"


def forgets_as_before(verdict: Verdict) -> bool:
    """Return whether this check was not judged since the script before the change loses something, too."""
    return verdict.status == NOT_APPLICABLE and verdict.summary.startswith(NOT_BEFORE)


def _differs_before(runs: Runs, options: CheckOptions, fault: Finding) -> str | None:
    """Return the check that finds another training than on one process before the resume parts from the run."""
    for verdict in (check(runs, options) for check in (loss, gradients, parameters)):
        is_earlier = verdict.step is not None and fault.step is not None and verdict.step <= fault.step
        if verdict.status == FAIL and is_earlier:
            return verdict.check
    return None


def _is_optimizer_of_another_rank(fault: Finding) -> bool:
    return fault.summary.startswith(f"{OTHER_WEIGHTS}, on rank ") and not fault.summary.endswith("on rank 0")


def _faults(runs: Runs, done: int, options: CheckOptions) -> Iterator[Finding]:
    """Yield what is another one in the resumed run, as far as it need not follow from what was yielded before."""
    many, resumed = runs["many"], runs["resumed"]
    if not resumed.num_steps:
        yield Finding(NO_STEP, "RF507", done)
        return
    fault = step_fault(many, resumed, done, tolerance_of(many, options))
    if fault is None:
        yield from state_faults(many, resumed, done, runs.get("reference"))
        return
    if fault.summary.startswith(ANOTHER_LOSS) and changed_in_place(many) is not None:
        summary = f"{ANOTHER_LOSS}: follows from the data, which changes while it is read (see split)"
        fault = Finding(summary, "RF110", fault.step, fault.value)
    yield fault
    yield from memory_faults(many, resumed, done)


def _kinds_on_one_process(runs: Runs, options: CheckOptions) -> set[str]:
    """Return what differs when a script is stopped and resumed on one process: the one before the change, if any."""
    if not_made(runs, "alone", "alone_resumed"):
        return set()
    alone, continued = runs["alone"], runs["alone_resumed"]
    if not continued.num_steps:
        return {NO_STEP} if continued.finished else set()
    done = steps_saved(alone, continued) or 0
    kinds = kinds_of_faults(alone, continued, done, tolerance_of(alone, options))
    return kinds | {kind_of(fault) for fault in state_faults(alone, continued, done, alone)}


def _ranks_apart(resumed: Run, done: int) -> Finding | None:
    """Return that the ranks do not hold the same weights after the resume, as they do before it."""
    apart = disagreement(resumed)
    if apart is None:
        return None
    summary = "the ranks hold different weights after the resume: something was restored on some of them only"
    return Finding(summary, "RF507", done + (apart.step or 0), apart.value)


def other_number_of_steps(runs: Runs, done: int) -> Finding | None:
    """Return that more or fewer steps follow than on one process, where both trainings came to their end."""
    names = ("many", "resumed", "alone", "alone_resumed")
    if not_made(runs, *names) or not all(runs[name].finished for name in names):
        return None
    many, resumed, alone, continued = (runs[name] for name in names)
    if many.num_steps != alone.num_steps or resumed.num_steps == continued.num_steps:
        return None
    value = f"{count(resumed.num_steps, 'step')} with {many.world_size} processes, {continued.num_steps} with 1"
    summary = "another number of steps follows than on one process: the number of the epoch was not restored"
    return Finding(summary, "RF507", done, value)


def _noted(faults: list[Finding], known: set[str]) -> Finding:
    """Return the first fault, with the others in its note: they may follow from it."""
    notes = [ON_ONE_PROCESS] if kind_of(faults[0]) in known else []
    notes += [f"so, too: {kind_of(fault)}" for fault in faults[1:4]]
    return replace(faults[0], note=joined([faults[0].note, *notes]))


def _continues_where_it_was_cut(many: Run, resumed: Run) -> bool:
    """Return whether the resumed script continues in the first epoch, after the samples at which the trace ended it."""
    for rank, other in zip(many.ranks, resumed.ranks):
        first = rank.epochs[0] if rank.epochs else None
        if first is None or first.end is None or not first.end.is_capped or first.order is None:
            return False
        whole, used = flat(first.order), len(first.delivered)
        found = flat(drawn_samples(other, 0)[:1])
        is_next = found == whole[used : used + len(found)]
        is_skipping = len(found) > used and found == whole[: len(found)]  # it draws the batches and leaves them out
        if not found or not (is_next or is_skipping):
            return False
    return True


def _hashes(rank: RankTrace, start: int, steps: int) -> list[str]:
    return [step.parameter_hash for step in rank.steps[start : start + steps]]

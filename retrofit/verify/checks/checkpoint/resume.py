"""A training that is resumed after its first epoch against the one that was not stopped."""

from __future__ import annotations

import math

from retrofit.verify.checks.data.split import changed_in_place
from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.differences import tensors_differ, tolerance_of
from retrofit.verify.checks.training.learning_rate import SAME
from retrofit.verify.checks.training.ranks_agree import disagreement
from retrofit.verify.evidence import RankTrace, Run, Runs, flat, relative_difference
from retrofit.verify.trace.events import InitialWeights, OptimizerStep
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .first_epoch import state_of, steps_saved, when_saved
from .own_restart import fails_as_before

ANOTHER_LOSS = "the loss is another one with the same samples"


def resume(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the second epoch of the resumed run with that of the run that was not stopped, on every rank."""
    check, title = "resume", "a resumed training continues as if it had not stopped"
    given = options.reasons.get("resumed", "no arguments that resume were given")
    reason = given if "resumed" not in runs else not_made(runs, "many", "resumed")
    if reason:
        return not_applicable(check, title, reason)
    many, resumed = runs["many"], runs["resumed"]
    own = fails_as_before(runs, resumed)
    if own is not None:
        return not_applicable(check, title, f"before the change it does not resume on one process either: {own}")
    if disagreement(many) is not None:
        reason = "the ranks hold different weights, and a checkpoint holds those of one (see ranks_agree)"
        return not_applicable(check, title, reason)
    done = steps_saved(many, resumed)
    if done is None or many.num_steps <= done:
        return not_applicable(check, title, why_not(many, "the training has no second epoch to compare with"))
    if not resumed.num_steps:
        if resumed.finished:
            return fail_with(check, title, Finding("the resumed script makes no optimizer step", "RF507", done))
        return not_applicable(check, title, "the resumed script ended before its first step (see completes)")
    fault = resume_fault(many, resumed, done, tolerance_of(many, options))
    if fault is not None and fault.summary.startswith(ANOTHER_LOSS) and changed_in_place(many) is not None:
        summary = f"{ANOTHER_LOSS}: follows from the data, which changes while it is read (see split)"
        fault = Finding(summary, "RF110", fault.step, fault.value)
    if fault is not None and _continues_where_it_was_cut(many, resumed):
        reason = "epochs are cut after half of the steps, and the script counts steps to find its place; use --steps 0"
        return not_applicable(check, title, reason)
    if fault is not None and _is_of_the_original(runs, fault, options):
        summary = f"not restored by the script before the change either, on one process: {_kind(fault)}"
        return not_applicable(check, title, summary)
    if fault is not None:
        return fail_with(check, title, fault)
    steps = min(resumed.num_steps, many.num_steps - done)
    exact = all(_hashes(a, done, steps) == _hashes(b, 0, steps) for a, b in zip(many.ranks, resumed.ranks))
    note = None if exact else "equal up to rounding, not bit for bit"
    return passed(check, title, f"the same samples, losses, rates and weights in {count(steps, 'step')}", note)


def resume_fault(many: Run, resumed: Run, done: int, tolerance: float) -> Finding | None:
    """Return the first thing in which the resumed run is another one; steps are counted from the very beginning."""
    fault = _start_fault(many, resumed, done, tolerance)
    if fault is not None:
        return fault
    steps = min(resumed.num_steps, many.num_steps - done)
    samples = [(_samples(a, done), _samples(b, 0)) for a, b in zip(many.ranks, resumed.ranks)]
    for step in range(steps):
        for rank, (ours, theirs) in enumerate(zip(many.ranks, resumed.ranks)):
            expected, found = ours.steps[done + step], theirs.steps[step]
            drawn, again = samples[rank][0][step], samples[rank][1][step]
            if step == 0 and drawn:  # before it the batches that were trained on are drawn and left out
                again = again[-len(drawn) :]
            what = _difference(expected, found, drawn, again, tolerance, step == 0)
            if what is not None:
                return Finding(f"{what[0]}, on rank {rank}", "RF507", done + step, what[1])
    return None


def _is_of_the_original(runs: Runs, fault: Finding, options: CheckOptions) -> bool:
    """Return whether the script before the change, stopped and resumed on one process, differs in the same way."""
    if not_made(runs, "alone", "alone_resumed"):
        return False
    alone, continued = runs["alone"], runs["alone_resumed"]
    own = resume_fault(alone, continued, steps_saved(alone, continued) or 0, tolerance_of(alone, options))
    return own is not None and _kind(own) == _kind(fault)


def _kind(fault: Finding) -> str:
    """Return what differs, without the rank on which it does."""
    return fault.summary.partition(", on rank")[0]


def _continues_where_it_was_cut(many: Run, resumed: Run) -> bool:
    """Return whether the resumed script continues in the first epoch, after the samples at which the trace ended it."""
    for rank, other in zip(many.ranks, resumed.ranks):
        first = rank.epochs[0] if rank.epochs else None
        if first is None or first.end is None or not first.end.is_capped or first.order is None:
            return False
        whole, used = flat(first.order), len(first.delivered)
        found = flat(_samples(other, 0)[:1])
        is_next = found == whole[used : used + len(found)]
        is_skipping = len(found) > used and found == whole[: len(found)]  # it draws the batches and leaves them out
        if not found or not (is_next or is_skipping):
            return False
    return True


def _start_fault(many: Run, resumed: Run, done: int, tolerance: float) -> Finding | None:
    reached, loaded = when_saved(many, resumed), state_of(resumed.main.of(InitialWeights))
    started = state_of(many.main.of(InitialWeights))
    for opt, event in loaded.items():
        if opt not in reached or not tensors_differ(event, reached[opt], tolerance):
            continue
        if opt in started and not tensors_differ(event, started[opt], tolerance):
            return Finding("the resumed script starts from the initial weights", "RF507", done)
        return Finding("the resumed script starts from other weights than were saved", "RF507", done)
    return None


def _difference(
    expected: OptimizerStep,
    found: OptimizerStep,
    samples: list[object],
    other: list[object],
    tolerance: float,
    is_first: bool,
) -> tuple[str, str | None] | None:
    """Return what differs first in one step: the samples, the rate, the loss or the weights, and the values."""
    if samples != other:
        shown = f"{samples[:4]} without the stop, {other[:4]} after it"
        return "other samples follow: the position in the data, or the epoch's order, was not restored", shown
    for a, b in zip(expected.lr, found.lr):
        if relative_difference(a, b) > SAME:
            return "the learning rate is another one: the scheduler was not restored", f"{a:.6g} and {b:.6g}"
    # Before its first step a resumed script may have run a forward and a backward for nothing.
    totals = math.fsum(expected.losses), math.fsum(found.losses[-len(expected.losses) :])
    if relative_difference(*totals) > tolerance:
        cause = "random state or buffers were not restored" if is_first else "something of the state was not restored"
        return f"{ANOTHER_LOSS}: {cause}", f"{totals[0]:.10g} and {totals[1]:.10g}"
    if tensors_differ(expected, found, tolerance):
        return "the weights are others after a step with the same loss: the optimizer's state was not restored", None
    return None


def _samples(rank: RankTrace, first_step: int) -> list[list[object]]:
    """Return the training samples drawn for each optimizer step from `first_step` on, in order."""
    batches = sorted(
        (position, batch)
        for iteration in rank.training
        for position, batch in zip(iteration.batch_positions, iteration.batches)
    )
    found: list[list[object]] = []
    number = 0
    for position in rank.step_positions:
        drawn: list[object] = []
        while number < len(batches) and batches[number][0] < position:
            drawn += batches[number][1]
            number += 1
        found.append(drawn)
    return found[first_step:]


def _hashes(rank: RankTrace, start: int, steps: int) -> list[str]:
    return [step.parameter_hash for step in rank.steps[start : start + steps]]

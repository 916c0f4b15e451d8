"""The ranks' weights: bit-identical after every optimizer step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from retrofit.verify.checks.finding import Finding, fail_with, first_few, not_made, number_of_ranks, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.processes.collectives import uneven_batches
from retrofit.verify.checks.processes.own_draws import OWN_DRAWS, decided_by_draws
from retrofit.verify.evidence import Run, Runs
from retrofit.verify.trace.events import InitialWeights, OptimizerStep, Weights
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .causes.averaged_weights import BY_DESIGN, averaged_weights, unequal_weights
from .causes.averaging import ENOUGH, averaging_fault, parameter_names
from .causes.changed_in_place import CAUSE as IN_PLACE
from .causes.changed_in_place import changed_between_steps, changed_in_forward
from .causes.traffic import traffic
from .decided_figures import parted_ranks


def ranks_agree(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the weights of the ranks after each step, bit for bit. Buffers may differ: DDP sends rank 0's later."""
    check, title = "ranks_agree", "all ranks hold the same weights after every step"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    fault = uneven_steps(many)
    if fault is None and (many.world_size == 1 or many.num_steps == 0):
        return not_applicable(check, title, why_not(many, "no optimizer step was made by several ranks"))
    fault = disagreement(many) or fault or _fault_of_own_draws(runs)
    if fault is not None:
        return fail_with(check, title, fault)
    averaged = averaged_weights(many)
    if averaged is not None:
        return passed(check, "all ranks hold the same weights after each average", averaged.shown(many), BY_DESIGN)
    steps = count(many.num_steps, "optimizer step")
    return passed(check, title, f"bit-identical on {number_of_ranks(many)} after each of {steps}")


def _fault_of_own_draws(runs: Runs) -> Finding | None:
    run = runs.get(OWN_DRAWS)
    if run is None:
        return None
    apart = disagreement(run)
    fault = uneven_steps(run) or (apart and replace(apart, summary="the ranks hold different weights"))
    return None if fault is None else decided_by_draws(fault, runs["many"])


def uneven_steps(run: Run) -> Finding | None:
    """Return a fault when the ranks have made other numbers of optimizer steps, and all came to their end."""
    numbers = [len(rank.steps) for rank in run.ranks]
    if not run.finished or len(set(numbers)) == 1:
        return None
    value = f"optimizer steps by rank: {', '.join(map(str, numbers))}"
    # Each step of a rank that makes none is left out: it does not train at all.
    cause = "RF209" if 0 in numbers else "RF401"
    return Finding("the ranks make different numbers of optimizer steps", cause, min(numbers), value)


def disagreement(run: Run) -> Finding | None:
    """Return the first step after which the ranks hold different weights, and why, if there is one.

    Not where they average their weights every few steps, by design.
    """
    rows = enumerate(zip(*(rank.steps for rank in run.ranks)))
    number, steps = next(((n, row) for n, row in rows if len({step.parameter_hash for step in row}) > 1), (0, ()))
    if not steps or (initial_disagreement(run) is None and averaged_weights(run) is not None):
        return None
    fault = unequal_weights(run)
    if fault is not None:
        return replace(fault, step=number, value=_differing(run, steps))
    summary, cause = _diagnosis(run, number, steps)
    return Finding(summary, cause, number, _differing(run, steps))


def initial_disagreement(run: Run) -> Finding | None:
    """Return a fault when the ranks start from different weights."""
    for events in zip(*(rank.of(InitialWeights) for rank in run.ranks)):
        if len({event.parameter_hash for event in events}) > 1:
            changed = changed_in_forward(run, events)
            if changed is not None:
                return replace(changed, value=_differing(run, events))
            return Finding("initial weights differ between ranks", _cause_of_start(run), value=_differing(run, events))
    return None


def _cause_of_start(run: Run) -> str:
    """Return why weights differ before the first step: DDP makes them equal when it wraps, averaging by hand does not.

    Where nothing is averaged, the model is not wrapped.
    """
    parts = traffic(run.main)
    if not any(part.reduced >= ENOUGH * part.needed > 0 for part in parts):
        return "RF201"
    return "RF213" if any(part.in_backward >= ENOUGH * part.needed > 0 for part in parts) else "RF108"


def _differing(run: Run, events: Sequence[Weights]) -> str | None:
    """Return which parameters are not the same in the events, one of each rank."""
    names = parameter_names(run.main, events[0])
    hashes = [event.parameter_hashes for event in events]
    differ = [name for name, *values in zip(names, *hashes) if len(set(values)) > 1]
    return f"{len(differ)} of {count(len(names), 'parameter')} differ: {first_few(differ)}" if differ else None


def rates_by_rank(run: Run) -> Finding | None:
    """Return the first step with a learning rate that is not the same on all ranks, if there is one."""
    for step, events in enumerate(zip(*(rank.steps for rank in run.ranks))):
        rates = [event.lr for event in events]
        if any(rate != rates[0] for rate in rates):
            value = f"by rank: {', '.join(f'{rate[0]:g}' for rate in rates)}"
            uneven = uneven_batches(run)
            if uneven is not None:
                return Finding(f"each rank's learning rate follows its own schedule: {uneven}", "RF106", step, value)
            summary = "the learning rate is not the same on all ranks: it was decided on values of their own"
            return Finding(summary, "RF401", step, value)
    return None


def _diagnosis(run: Run, number: int, steps: Sequence[OptimizerStep]) -> tuple[str, str | None]:
    initial = initial_disagreement(run)
    if initial is not None and initial.cause == IN_PLACE:
        return "the ranks make their first step with different weights (see initial_state)", initial.cause
    if initial is not None:
        cause = "RF108" if initial.cause == "RF213" else initial.cause
        return (
            "the ranks already start from different weights, drawn with seeds of their own (see initial_state)",
            cause,
        )
    rates = rates_by_rank(run)
    if rates is not None and rates.step is not None and rates.step <= number:
        return f"the ranks step with different learning rates (see lr): {rates.value}", rates.cause
    parted = parted_ranks(run)
    if parted is not None and parted.event.step <= number:
        return f"each rank decides by its own figure (see decisions): {parted.shown(run.world_size)}", "RF401"
    changed = changed_between_steps(run, number)
    return (changed.summary, changed.cause) if changed is not None else averaging_fault(run, number, steps)

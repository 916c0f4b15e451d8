"""The run on several processes as the user starts it: a larger batch than that of one process, by design."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from retrofit.verify.checks.data.global_batch import rows_per_step
from retrofit.verify.checks.data.shards import shards_fault
from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.output.single_writer import writer_fault
from retrofit.verify.checks.training.ranks_agree import disagreement, rates_by_rank, uneven_steps
from retrofit.verify.evidence import RankTrace, Run, Runs, relative_difference
from retrofit.verify.trace.events import OptimizerFound
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .completion import fault_of
from .errors import first_failure

LARGER = "with a batch for each process"
REFUSES = re.compile(r"RETROFIT_BATCH=global|--batch global|global batch")
SAME_MODE = "the script's own batch is the one that was compared"
SAME = 1e-9  # relative: learning rates are products of a few numbers
RULES = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}  # of rd.scaled_lr: the power of the number of processes


def default_mode(runs: Runs, options: CheckOptions) -> Verdict:
    """Judge the larger batch by what does not depend on it: samples, ranks that agree, learning rate, files, the end.

    What is wrong in the compared mode, too, is found there.
    """
    check, title = "default_mode", "as you start it, the ranks train one model on all samples"
    reason = not_made(runs, "many", "one")
    if reason or "default" not in runs:
        return not_applicable(check, title, reason or options.reasons.get("default", SAME_MODE))
    run = runs["default"]
    reason = _refusal(run) or _too_few_samples(runs)
    if reason and not run.finished:
        return not_applicable(check, title, reason)
    fault = _fault(runs, options)
    if fault is not None:
        return fail_with(check, title, replace(fault, summary=f"as you start it ({LARGER}): {fault.summary}"))
    if not run.num_steps:
        return not_applicable(check, title, why_not(run, "no optimizer step was made"))
    times = _times_as_many(runs)
    if times is None:
        return not_applicable(check, title, "no samples came from a DataLoader")
    if times == 1:
        return passed(check, title, "the same batch as the one that was compared", _lr_note(runs, options))
    summary = f"larger batch, by design: {times:g} times as many samples per step ({_rows_shown(run)})"
    return passed(check, title, joined([summary, _lr_note(runs, options)]) or summary, _judged(run))


def is_same_batch(runs: Runs) -> bool:
    """Return whether a step of the run as the user starts it takes the samples of one process."""
    return "default" in runs and "one" in runs and _times_as_many(runs) == 1


def _fault(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return the first thing that is wrong in this mode and right in the compared one."""
    many, run = runs["many"], runs["default"]
    if not run.finished:
        return fault_of(run, runs) if many.finished else None
    searches: tuple[Callable[[Run], Finding | None], ...] = (
        lambda one: shards_fault({"one": runs["one"], "many": one}),
        lambda one: disagreement(one) or uneven_steps(one),
        rates_by_rank,
        writer_fault,
    )
    for search in searches:
        fault = search(run)
        if fault is not None and search(many) is None:
            return fault
    return _lr_fault(runs) if options.uses_runtime else None


def _refusal(run: Run) -> str | None:
    """Return what the runtime says where it refuses this mode: it names the one that it takes."""
    failure = first_failure(run)
    return failure.sentence if failure is not None and REFUSES.search(failure.message) else None


def _too_few_samples(runs: Runs) -> str | None:
    """Return that the training data hold no batch of all processes, which ends many a script."""
    many = runs["many"]
    rows = max(rows_per_step(many).values(), default=0) * many.world_size
    length = next((one.length for one in many.main.training), None)
    return f"{length} training samples hold no batch of {rows}" if length is not None and length < rows else None


def _lr_fault(runs: Runs) -> Finding | None:
    """Return a fault for a factor on the learning rate that no rule of rd.scaled_lr gives."""
    factor, times = lr_factor(runs), _times_as_many(runs)
    if factor is None or times is None or times <= 1 or _rule(factor, times) is not None:
        return None
    linear = f"rd.scaled_lr gives {times:g} (linear), {times**0.5:.3g} (sqrt) or 1 (none)"
    return Finding(f"the learning rate is {factor:.6g} times that of one process", "RF304", 0, linear)


def _rule(factor: float, times: float) -> str | None:
    return next((name for name, power in RULES.items() if relative_difference(factor, times**power) <= SAME), None)


def lr_factor(runs: Runs) -> float | None:
    """Return the factor on the learning rates that schedules start from; None where there is not one for all.

    A rate without a scheduler counts where it stays the same: what changes it may count the steps of an epoch.
    """
    ours, theirs = _base_rates(runs["default"].main), _base_rates(runs["one"].main)
    pairs = [(a, b) for number in ours for a, b in zip(ours[number], theirs.get(number, ()))]
    factors = [a / b for a, b in pairs if a is not None and b]
    if not factors or len(factors) < len([pair for pair in pairs if pair != (0.0, 0.0)]):
        return None
    return factors[0] if all(relative_difference(other, factors[0]) <= SAME for other in factors) else None


def _base_rates(rank: RankTrace) -> dict[int, list[float | None]]:
    found: dict[int, list[float | None]] = {}
    for event in rank.of(OptimizerFound):
        rates = [step.lr for step in rank.steps if step.optimizer == event.optimizer]
        is_constant = bool(rates) and all(other == rates[0] for other in rates)
        constant = rates[0] if is_constant else [None] * len(event.base_lr)
        found[event.optimizer] = [base if base is not None else rate for base, rate in zip(event.base_lr, constant)]
    return found


def _lr_note(runs: Runs, options: CheckOptions) -> str:
    factor, times = lr_factor(runs), _times_as_many(runs)
    if factor is None:
        return "the learning rate follows a schedule of the script's own"
    rule = _rule(factor, times) if options.uses_runtime and times and times > 1 else None
    return f"learning rate x {factor:.6g}" + (f" ({rule} rule)" if rule and rule != "none" else "")


def _times_as_many(runs: Runs) -> float | None:
    """Return how many times as many samples a step takes as on one process, if that is the same for all optimizers."""
    ours, theirs = rows_per_step(runs["default"]), rows_per_step(runs["one"])
    ratios = {ours[number] / theirs[number] for number in ours if number in theirs}
    return ratios.pop() if len(ratios) == 1 else None


def _rows_shown(run: Run) -> str:
    return " and ".join(map(str, dict.fromkeys(rows_per_step(run).values())))


def _judged(run: Run) -> str:
    steps = count(run.num_steps, "step")
    return f"losses are others, and not compared; over {steps}: samples, the ranks' weights, learning rates, files"

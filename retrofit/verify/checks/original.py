"""The script after the change against the script before it, in one process, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterator

from retrofit.verify.checks.data.evaluated_samples import evaluations
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import BatchDrawn, InitialWeights, NondeterministicOperator, OptimizerStep
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .finding import Finding, fail_with, not_made
from .options import CheckOptions


def original(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the changed script on one process with the script before the change, bit for bit."""
    check, title = "original", "on one process the script is what it was, bit for bit"
    if "original" not in runs:
        return not_applicable(check, title, "the script before the change was not given (--original)")
    reason = not_made(runs, "original", "one")
    if reason:
        return not_applicable(check, title, reason)
    before, after = runs["original"], runs["one"]
    fault = _first_difference(before.main, after.main)
    if fault is None and before.finished != after.finished:
        return not_applicable(check, title, "one of the two ended before (see completes); the same until then")
    if fault is not None:
        return fail_with(check, title, _with_cause(fault, before, after))
    if not before.main.steps:
        return not_applicable(check, title, "no optimizer step was made")
    samples = sum(map(len, (one.delivered for one in before.main.iterations)))
    steps = count(len(before.main.steps), "step")
    return passed(check, title, f"samples, losses, rates, weights and buffers of {steps}, {count(samples, 'sample')}")


def _with_cause(fault: Finding, before: Run, after: Run) -> Finding:
    operators = [event.op for run in (before, after) for event in run.main.of(NondeterministicOperator)]
    is_number = not fault.summary.startswith("other samples")
    if not operators or not is_number:
        return fault
    note = f"{operators[0]} has no deterministic version"
    return Finding(fault.summary, "RF002", fault.step, fault.value, note)


def _first_difference(before: RankTrace, after: RankTrace) -> Finding | None:
    """Return the first difference in the order of the training; what only one of a broken off pair has is none."""
    for a, b in zip(before.of(InitialWeights), after.of(InitialWeights)):
        if a.parameter_hash != b.parameter_hash:
            return Finding("initial weights are others", step=0)
    by_step = _step_fault(before, after)
    by_samples = _sample_fault(before, after)
    faults = [fault for fault in (by_samples, by_step) if fault is not None]
    first = min(faults, key=lambda fault: fault.step or 0, default=None)
    if first is not None:
        return first
    both_ended = before.ended_well and after.ended_well
    if both_ended and len(before.steps) != len(after.steps):
        value = f"{len(before.steps)} steps before the change, {len(after.steps)} after it"
        return Finding("another number of optimizer steps", step=min(len(before.steps), len(after.steps)), value=value)
    passes = len(evaluations(before)), len(evaluations(after))
    if both_ended and passes[0] != passes[1]:
        return Finding("another number of evaluations", value=f"{passes[0]} before the change, {passes[1]} after it")
    return None


def _sample_fault(before: RankTrace, after: RankTrace) -> Finding | None:
    for (step, a, is_training), (_, b, _) in zip(_batches(before), _batches(after)):
        if a != b:
            what = "the training" if is_training else "an evaluation"
            value = f"{a[:4]} before the change, {b[:4]} after it"
            return Finding(f"other samples in {what}", step=step, value=value)
    return None


def _batches(rank: RankTrace) -> Iterator[tuple[int, list[object], bool]]:
    """Yield each batch with the number of the optimizer step it was drawn before, and whether it is for training."""
    trains = {one.begin.iteration: one.train for one in rank.iterations}
    for event in rank.of(BatchDrawn):
        yield event.step, event.samples, trains.get(event.iteration, False)


def _step_fault(before: RankTrace, after: RankTrace) -> Finding | None:
    for number, (a, b) in enumerate(zip(before.steps, after.steps)):
        fault = _one_step_fault(number, a, b)
        if fault is not None:
            return fault
    return None


def _one_step_fault(number: int, a: OptimizerStep, b: OptimizerStep) -> Finding | None:
    losses = [math.fsum(event.losses) for event in (a, b)]
    if repr(losses[0]) != repr(losses[1]):
        value = f"loss {losses[0]!r} before the change, {losses[1]!r} after it"
        return Finding("the loss is another one", step=number, value=value)
    if a.lr != b.lr:
        return Finding("the learning rate is another one", step=number, value=f"{a.lr} and {b.lr}")
    if a.parameter_hash != b.parameter_hash:
        return Finding("the weights are others", step=number)
    if a.buffer_hash != b.buffer_hash:
        return Finding("the buffers are others", step=number)
    return None

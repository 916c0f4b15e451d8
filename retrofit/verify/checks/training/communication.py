"""Gradients are all-reduced once per optimizer step, not in every backward."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Runs
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .causes.traffic import StepTraffic, traffic

TOO_OFTEN = 1.5  # times all gradients; buckets and small reductions stay far below


def communication(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare what is all-reduced in backward with the size of the gradients."""
    check, title = "communication", "gradients are all-reduced once per optimizer step"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    parts = [(step, part) for step, part in enumerate(traffic(many.main)) if part.needed and part.in_backward]
    if many.world_size == 1 or not parts:
        return not_applicable(check, title, why_not(many, "no gradients were all-reduced in backward"))
    wasteful = [(step, part) for step, part in parts if _times(part) > TOO_OFTEN and part.backwards > 1]
    accumulated = [(step, part) for step, part in wasteful if part.batches > 1]
    if accumulated and not options.is_converted:
        step, part = accumulated[0]
        value = f"{part.in_backward} elements all-reduced for {part.needed} gradient elements"
        summary = f"gradients are all-reduced {_times(part):.0f} times per optimizer step"
        return fail_with(check, title, Finding(summary, "RF203", step, value))
    note = None
    if accumulated:
        times = _times(accumulated[0][1])
        note = f"{times:.0f} times in an accumulated step: right, and slower than rd.strategies.gradient_sync"
    elif wasteful:
        part = wasteful[0][1]
        note = f"{part.backwards} backward calls on one batch all-reduce {_times(part):.0f} times: one call would do"
    typical = sorted(_times(part) for _, part in parts)[len(parts) // 2]
    return passed(check, title, f"{typical:.2g} times the gradients in {count(len(parts), 'step')}", note)


def _times(part: StepTraffic) -> float:
    return part.in_backward / part.needed

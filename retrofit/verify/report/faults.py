"""The faults of a script: failed checks with one cause together, the one that says most first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrofit.verify.verdict import FAIL, Verdict

SEEN_IN = re.compile(r"\(see (\w+)\)")
# Weights follow from gradients, gradients from the loss: where no cause is known, it is one fault.
OF_ONE_STEP = ("loss", "gradients", "parameters")


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: the check that shows it best, and the others that fail for the same reason."""

    verdict: Verdict
    explains: Sequence[Verdict] = ()


def faults(verdicts: Sequence[Verdict]) -> list[Fault]:
    """Return what is wrong, in the order of the checks. Each FAIL is in one fault.

    What has no known cause and begins after something that has one comes last: it may follow from that.
    """
    failed = [verdict for verdict in verdicts if verdict.status == FAIL]
    groups: list[list[Verdict]] = []
    for verdict in failed:
        group = next((group for group in groups if any(_is_one(verdict, other, failed) for other in group)), None)
        if group is None:
            groups.append([verdict])
        else:
            group.append(verdict)
    found = [_fault(group) for group in groups]
    steps = [one.verdict.step for one in found if one.verdict.cause is not None and one.verdict.step is not None]
    return sorted(found, key=lambda fault: _may_follow(fault.verdict, min(steps, default=None)))


def _may_follow(verdict: Verdict, first_step: int | None) -> bool:
    """Return whether a failed check without a cause begins after the first step with a known one."""
    if verdict.cause is not None or verdict.step is None or first_step is None:
        return False
    return verdict.step > first_step


def _is_one(verdict: Verdict, other: Verdict, failed: Sequence[Verdict]) -> bool:
    """Return whether two failed checks have one cause."""
    if verdict.cause is not None and verdict.cause == other.cause:
        return True
    if {verdict.check, other.check} <= set(OF_ONE_STEP) and verdict.cause == other.cause:
        return True
    return other.check in SEEN_IN.findall(verdict.summary) or verdict.check in SEEN_IN.findall(other.summary)


def _fault(group: list[Verdict]) -> Fault:
    first = min(group, key=_order)
    return Fault(first, [verdict for verdict in group if verdict is not first])


def _order(verdict: Verdict) -> tuple[bool, bool, int]:
    """Return what comes first in a group: what follows from another check comes last."""
    return bool(SEEN_IN.search(verdict.summary)), verdict.step is None, verdict.step or 0

"""Parameters of the optimizer that no gradient reaches on several processes, where one process has gradients."""

from __future__ import annotations

from retrofit.verify.checks.finding import Finding, first_few
from retrofit.verify.evidence import Runs
from retrofit.verify.trace.events import OptimizerFound


def not_reached(runs: Runs, step: int) -> Finding | None:
    """Return a fault where parameters have a gradient on one process and on none of several, in a step."""
    many, reference = runs["many"], runs["reference"].main
    found, alone = many.main.of(OptimizerFound), reference.steps[step].gradients
    of_ranks = [rank.steps[step].gradients for rank in many.ranks]
    if len(found) != 1 or any(len(own) != len(alone) for own in of_ranks):
        return None
    missing = [
        name for name, expected, *own in zip(found[0].names, alone, *of_ranks) if expected is not None and not any(own)
    ]
    if not missing:
        return None
    if not any(gradient for own in of_ranks for gradient in own):
        text = "no gradient reaches the parameters that the optimizer has: they are not those of the model that trains,"
        return Finding(f"{text} which got others after the optimizer was built (fully_shard, a copy)", "RF211", step)
    return Finding(f"no gradient reaches {first_few(missing)} on any rank, as it does on one process", None, step)

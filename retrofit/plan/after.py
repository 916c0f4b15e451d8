"""`plan --after`: the recommended training is run for some steps, and what was predicted is compared with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from retrofit.why.analysis.picture import picture_of
from retrofit.why.run import Start, recorded

from .history import remember
from .plan import Plan
from .predict.prediction import Prediction
from .report.text import VARIABLES


class CannotRun(Exception):
    """The recommended training cannot be started here. The message says why."""


@dataclass(frozen=True)
class Outcome:
    """A prediction and what was measured."""

    prediction: Prediction
    measured: float  # s of a step, median
    history: str  # the file in which the pair is kept

    @property
    def line(self) -> str:
        one = self.prediction
        inside = "inside" if one.low <= self.measured <= one.high else "outside"
        return (
            f"predicted {1e3 * one.seconds:.1f} ms per step, measured {1e3 * self.measured:.1f} ms "
            f"({self.measured / one.seconds - 1:+.1%}), {inside} the interval; kept in {self.history}"
        )


def run_recommended(plan: Plan, start: Start, devices: int) -> Outcome:
    """Run what is recommended, on as many processes. Raises CannotRun, ScriptFailed, TooFewSteps, OSError."""
    chosen = plan.choice.prediction
    if chosen is None:
        raise CannotRun("nothing is recommended, so there is nothing to run")
    if chosen.gpus > devices:
        raise CannotRun(
            f"{chosen.gpus} GPUs are recommended, and this machine has {devices}; --gpus {devices} plans for it"
        )
    if chosen.strategy.name not in VARIABLES:
        raise CannotRun(f"{chosen.strategy.name} is recommended, which this command cannot switch on in a script")
    with recorded(replace(start, variables=VARIABLES[chosen.strategy.name]), chosen.gpus) as folder:
        picture = picture_of(folder, None)
    if not any(one.meetings for step in picture.steps for one in step.ranks):
        raise CannotRun(
            f"{start.script.name} ran on {chosen.gpus} processes that did not communicate: it is not a training on "
            "several GPUs yet; `retrofit convert` makes it one"
        )
    name, link = chosen.strategy.name, plan.links[chosen.gpus].name
    factor = plan.corrected[chosen.gpus].get(name, 1.0)
    kept = remember(start.script, name, chosen.gpus, link, chosen.seconds / factor, picture.seconds)
    return Outcome(chosen, picture.seconds, str(kept))

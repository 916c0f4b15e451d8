"""The parts of a step, against a step of one process with the same samples per rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from retrofit.why.instruments.loaders import COLLATE
from retrofit.why.instruments.stalls import CURVES, LOGGING, PRINT, SAVE, WAIT
from retrofit.why.instruments.training import BACKWARD, OPTIMIZER

from .picture import Picture
from .steps import AFTER, FORWARD, GRADIENTS, LOADING

COMMUNICATION, LATENESS, REST = "communication", "waiting for late ranks", "not attributed"
ROWS = {
    "data": (LOADING, COLLATE),
    "forward and loss": (FORWARD,),
    "backward": (BACKWARD,),
    "gradients and optimizer": (GRADIENTS, OPTIMIZER),
    "printing and logging": (PRINT, LOGGING, CURVES),
    "checkpoints": (SAVE,),
    "reads from the GPU": (WAIT,),
    "after the step": (AFTER,),
}


@dataclass(frozen=True)
class Row:
    """A part of a step, in seconds."""

    name: str
    seconds: float  # mean of the ranks, mean of the steps
    single: float | None  # the same on one process, for as many samples as a rank has; None where it was not run

    @property
    def lost(self) -> float | None:
        return None if self.single is None else self.seconds - self.single


def waterfall(picture: Picture) -> list[Row]:
    """Return the parts of a step; their sum is the mean step. What no mark explains is the last row."""
    steps = picture.steps
    scale = _scale(picture)
    rows = []
    for name, phases in ROWS.items():
        seconds = _mean(
            sum(one.phases.get(p, 0.0) for one in step.ranks for p in phases) / len(step.ranks) for step in steps
        )
        alone = None
        if scale is not None:
            alone = scale * _mean(sum(one.phases.get(phase, 0.0) for phase in phases) for one in picture.single)
        if seconds or alone:
            rows.append(Row(name, seconds, alone))
    zero = None if scale is None else 0.0
    rows.append(Row(LATENESS, _mean(step.waited for step in steps), zero))
    rows.append(Row(COMMUNICATION, _mean(step.transfer for step in steps), zero))
    whole = _mean(step.seconds for step in steps)
    of_one = None if scale is None else scale * _mean(one.seconds for one in picture.single)
    named = sum(row.seconds for row in rows)
    named_of_one = None if of_one is None else of_one - sum(row.single or 0.0 for row in rows)
    rows.append(Row(REST, _settled(whole - named, whole), named_of_one and _settled(named_of_one, whole)))
    return rows


def _scale(picture: Picture) -> float | None:
    """Return the samples of a rank's step as a share of those of one process's step."""
    alone = median(step.samples for step in picture.single) if picture.single else 0.0
    return picture.samples / picture.world_size / alone if alone and picture.samples else None


def _settled(seconds: float, whole: float) -> float:
    """Return 0 for what is rounding alone."""
    return 0.0 if abs(seconds) < 1e-9 * whole else seconds


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0

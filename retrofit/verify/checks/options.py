"""Options of the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# Rounding of a few steps of training; what is wrong differs by much more.
TOLERANCES = {"float64": 1e-8, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2}


FLOAT64, AS_IS = "float64", "as-is"
LEFT_OUT = "compared in float64 only: a gradient scaler leaves out steps where gradients overflow"
IN_FLOAT64 = "compared in float64 only: a figure that counts samples jumps where weights differ by rounding"


@dataclass(frozen=True)
class CheckOptions:
    """Options of all checks."""

    tolerance: float | None = None  # relative; None: by the dtype of the weights
    accept: frozenset[str] = frozenset()  # names of checks whose differences are intended
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a run was not made, by its name
    # The places where the loss couples the samples of a batch, asked for when a loss is not that of one process.
    coupled: Callable[[], Sequence[str]] = tuple
    precision: str = FLOAT64  # in which the runs are compared: this, or AS_IS
    uses_runtime: bool = False  # which has a function for each figure of all ranks, and a rule for the learning rate
    listed_figures: frozenset[str] = frozenset()  # "file:line" of what the user was told is rank 0's share
    is_converted: bool = False  # `retrofit convert` wrote it: on one process it is what it was before

    def tolerance_for(self, dtype: str) -> float:
        """Return the tolerance of values after training steps, apart from those that perturbed runs measure."""
        return TOLERANCES.get(dtype, 1e-8) if self.tolerance is None else self.tolerance

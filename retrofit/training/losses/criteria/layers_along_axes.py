"""Layers and criteria that compute along one axis, and whether that is the axis of the samples."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.bindings import scope_of
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.losses import COUNTED

from ..reductions.axes import number_in
from ..reductions.kinds import Kind
from ..terms import Term

# Layers of torch.nn that are told an axis, and the one where they are told none.
ALONG = {"Softmax": 1, "LogSoftmax": 1, "Softmin": 1, "GLU": -1, "CosineSimilarity": 1}
IN_TURN = "torch.nn.Sequential"
CLASSES = 1  # the axis of the classes for a criterion, in what it is given


def goes_along_samples(analysis: Analysis, made: Result, given: Kind) -> bool:
    """Return whether a layer, or one of several that run one after the other, computes along the samples of rows."""

    def inside(layer: Result) -> Iterator[Result]:
        scope = scope_of(analysis, layer.call)
        values = (value for part in layer.call.args for value in analysis.evaluate(part, scope))
        yield from (value for value in values if layer.builder == IN_TURN and isinstance(value, Result))

    return given.has_rows and any(_axis(layer) == given.axis for layer in closure([made], inside))


def _axis(made: Result) -> int | None:
    module, _, name = made.builder.rpartition(".")
    if name not in ALONG or module not in ("torch.nn", "torch.nn.modules.activation"):
        return None
    told = argument_for(made.call, ["dim"], "dim")
    return ALONG[name] if told is None else number_in(told)


def compares_samples(terms: list[Term], given: Kind) -> bool:
    """Return whether a criterion takes the samples for classes: F.cross_entropy(scores.t(), best)."""
    return given.has_rows and given.axis == CLASSES and any(term.name in COUNTED for term in terms)

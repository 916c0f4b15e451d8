"""The loops that evaluate, and whether their batches can be sharded: what each batch adds to, and nothing else."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.runtime import EVALUATION_SHARES

from ..data.loaders import EVALUATION, Loader, is_split
from ..files.guards import runs_on_one
from ..files.outputs import Output
from .body import Body
from .loop import Loop, NotShareable, calls_in
from .meters import LIST, METER, SUM, Accumulator, Meter
from .mode import Mode
from .surroundings import Afterwards

__all__ = ["LIST", "METER", "SUM", "Accumulator", "Evaluation", "Meter", "find_evaluations"]


@dataclass(frozen=True)
class Evaluation:
    """A loop over a loader that runs a model without training it. `reason` says why it cannot be sharded."""

    loop: ast.For
    scope: Scope
    batches: ast.expr  # what is drawn from
    accumulators: tuple[Accumulator, ...] = ()
    reason: str = ""


def find_evaluations(
    analysis: Analysis, loaders: list[Loader], models: set[Variable], outputs: list[Output]
) -> list[Evaluation]:
    """Return the evaluations of a project."""
    reached = known_scopes(analysis)
    uses = [use for loader in loaders for use in loader.uses if isinstance(use.loop, ast.For) and use.scope in reached]
    training = {use.loop for use in uses if use.role != EVALUATION}
    found: dict[ast.For, Evaluation] = {}
    for use in uses:
        assert isinstance(use.loop, ast.For)
        loop = Loop(analysis, use.loop, use.scope, frozenset(models))
        if use.loop in found or use.loop in training or not any(loop.model_calls()):
            continue
        try:
            batches, accumulators = _batches(loop), _accumulators(loop, outputs)
            found[use.loop] = Evaluation(use.loop, use.scope, batches, accumulators)
        except NotShareable as reason:
            found[use.loop] = Evaluation(use.loop, use.scope, use.loop.iter, reason=str(reason))
    return list(found.values())


def _accumulators(loop: Loop, outputs: list[Output]) -> tuple[Accumulator, ...]:
    """Return what the batches of a loop add to and something after it reads. Raises NotShareable."""
    Mode(loop).require_evaluation()
    body = Body(loop, outputs)
    body.read()
    afterwards = Afterwards(loop, body.own)
    afterwards.require_own_names_to_stay_inside()
    for accumulator in body.accumulators.values():
        afterwards.require_fresh(accumulator)
    kept = tuple(a for a in body.accumulators.values() if afterwards.is_read_later(a))
    if not kept:
        raise NotShareable("nothing that it adds up was recognised")
    return kept


def _batches(loop: Loop) -> ast.expr:
    """Return the expression of the loader, inside enumerate and a progress bar, also of one made before."""
    if loop.node.orelse:
        raise NotShareable("its loop has an else")
    if runs_on_one(loop.analysis, loop.scope, loop.node):
        raise NotShareable("one process alone runs it")
    drawn = loop.loader()
    if drawn is None:
        raise NotShareable("it does not draw from one loader alone")
    outer, loader = drawn
    if any(loop.is_called(call, EVALUATION_SHARES) for node in outer for call in calls_in(node)):
        raise NotShareable("it is sharded already")
    if is_split(loop.analysis, loader, loop.scope):
        raise NotShareable("its loader is sharded already")
    return loader

"""Lists of batches that are cut at once, and gone through by a training: parts of an array, slices of an order."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.data import BATCH_SAMPLER
from retrofit.training.torch_api.draws import CUTS

from ....loops import Path
from ...sized.made_before import of_losses
from ..filled import is_filled_by_model
from .slices import bounds_of

if TYPE_CHECKING:
    from .... import Project

FEWEST_OF_STEP = 3  # what an environment gives for an action: a state, a reward, whether it has ended
CUT_BY_METHOD = frozenset(name.rpartition(".")[2] for name in CUTS)


def gives_cut(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether all that an expression can be are lists of batches, or samplers that give the indices of each."""
    found = [origin for origin in origins(analysis, [Origin(node, scope)]) if not origin.keys]
    return any(_is_cut(analysis, origin.node, origin.scope) for origin in found)


def steps_in_each(path: Path) -> bool:
    """Return whether the optimizer makes a step in each turn of the innermost loop: its turns are batches, no parts."""
    loop, outer = path.loops[0]
    parts = list(walk(loop))
    for frame in path.frames:
        if frame.scope is outer.scope:
            break
        parts += own_nodes(frame.scope.node)
    return any(isinstance(part, ast.Call) and last_name(part) == "step" for part in parts)


def is_of_rollout(project: Project) -> bool:
    """Return whether a training plays in an environment, or takes samples from what its model has computed before.

    Not what it only shows: the mean of its last losses.
    """
    for node, _ in project.in_loops.of(ast.Assign):
        if isinstance(node.value, ast.Call) and last_name(node.value) == "step":
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and len(target.elts) >= FEWEST_OF_STEP:
                return True
    calls = {call.call for model in project.models for call in model.calls}
    in_batches = project.nodes_in_batches
    chosen = [(n, scope) for n, scope in of_losses(project).items() if isinstance(n, ast.Subscript) and n in in_batches]
    return any(is_filled_by_model(project, node.value, scope, calls) for node, scope in chosen)


def _is_cut(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        targets = {part.id for part in walk(node.generators[0].target) if isinstance(part, ast.Name)}
        return any(_is_bound_by(part, targets) for part in walk(node.elt))
    if not isinstance(node, ast.Call):
        return False
    names = analysis.called(node, scope)
    if "zip" in names:
        return bool(node.args) and all(gives_cut(analysis, part, scope) for part in node.args)
    if any(isinstance(v, Result) and v.builder == BATCH_SAMPLER for v in analysis.evaluate(node, scope)):
        return True
    return bool(names & CUTS) or _is_cut_by_method(analysis, node, scope, names)


def _is_cut_by_method(analysis: Analysis, node: ast.Call, scope: Scope, names: set[str]) -> bool:
    """Return whether this is a method of a tensor: x.chunk(8), and not text.split(",")."""
    if last_name(node) not in CUT_BY_METHOD or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    if isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str):
        return False
    is_known = all(name.startswith(("torch.", "numpy.")) for name in names)
    return is_known and not analysis.functions_called(node, scope)


def _is_bound_by(node: ast.AST, targets: set[str]) -> bool:
    """Return whether this is a slice of which both bounds depend on what a list goes through."""
    bounds = bounds_of(node)
    named = [{part.id for part in walk(bound) if isinstance(part, ast.Name)} for bound in bounds or ()]
    return bool(named) and all(names & targets for names in named)

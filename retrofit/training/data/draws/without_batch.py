"""Why no batch of a training is split: how it makes its batches is not known, or every step takes all of the data."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.branches import branches_around
from retrofit.analysis.flow.operands import computed_from, inputs
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.draws import INDICES

from ...loops import LOOPS, Path, loops_around
from .given_batches import counts
from .sized_draws import is_small, names_of, size_of

if TYPE_CHECKING:
    from ... import Project

GIVES_ONE = re.compile(r"next|batch|sample|fetch|^(get|pop|recv|__iter__)$", re.IGNORECASE)  # names of functions
TAKEN = frozenset({"get", "pop"})  # of which a plan of later changes is read, too, in the steps that make one
GIVES_NUMBER = re.compile(r"(^|_)(n|num|nb|number|count|len|total)_|_?(size|count|len|length)$", re.IGNORECASE)


def without_batch(project: Project, path: Path) -> tuple[ast.AST, Scope, str]:
    """Return why nothing of a path is split: what its loop goes through is not known, or it takes all of the data."""
    frame, (loop, outer) = path.frames[0], path.loops[0]
    if isinstance(loop, ast.For) and not counts(project.analysis, loop, outer.scope):
        return frame.node, frame.scope, f"how {ast.unparse(loop.iter)} makes its batches is not known"
    chosen = _chosen(project, path)
    if chosen is not None:
        return frame.node, frame.scope, f"how {ast.unparse(chosen)} makes a batch is not known"
    return frame.node, frame.scope, "no batch is drawn: every step computes its loss from all of the data"


def has_other_batch(project: Project, path: Path, call: ast.Call) -> bool:
    """Return whether the loop has other data for each step than what a call gives."""
    loop, outer = path.loops[0]
    is_counted = not isinstance(loop, ast.For) or counts(project.analysis, loop, outer.scope)
    return not is_counted or _chosen(project, path, call) is not None


def _chosen(project: Project, path: Path, known: ast.Call | None = None) -> ast.expr | None:
    """Return an expression of the loop that gives other data in each step, None where there is none but `known`."""
    in_loops = project.nodes_in_loops
    moving = frozenset(node for node, scope in project.in_loops if _moves_with(path, node, scope))
    models = {call.call for model in project.models for call in model.calls}
    start = Origin(path.frames[0].node.func.value, path.frames[0].scope)  # type: ignore[attr-defined]

    def through(origin: Origin) -> list[Origin] | tuple[()]:
        node = origin.node
        if isinstance(node, ast.Call) and node in models:  # what the model does with a batch gives no other one
            return [origin.to(part, keys=()) for part in (*node.args, *(given.value for given in node.keywords))]
        return () if node is known else list(inputs(project.analysis, origin, stored=True))

    found = origins(project.analysis, [start], through)
    for origin in (origin for origin in found if origin.node in in_loops and origin.node not in {*models, known}):
        node = origin.node
        if isinstance(node, ast.Call) and _gives_one(project, node, origin.scope):
            if last_name(node) in TAKEN and _is_in_some_steps(path, node, origin.scope):
                continue
            return node
        if isinstance(node, ast.Subscript) and follows_loop(project, node.slice, origin.scope, moving):
            return node
    return None


def _moves_with(path: Path, node: ast.AST, scope: Scope) -> bool:
    """Return whether a statement moves on with the steps, and not within one, where a step takes part after part."""
    around = {loop for loop, _ in path.loops}
    if isinstance(node, LOOPS):
        return node in around
    inner = next(loops_around(scope, node), None)
    return inner is None or inner in around


def _is_in_some_steps(path: Path, node: ast.Call, scope: Scope) -> bool:
    """Return whether a call is in a branch of the loop around a step: `if step in changes: size = sizes.pop(0)`."""
    loop, _ = path.loops[0]
    return loop in scope.source.ancestors(node) and any(branches_around(scope.source, node, loop))


def _gives_one(project: Project, node: ast.Call, scope: Scope) -> bool:
    names = names_of(project.analysis, node, scope)
    if names & INDICES:
        return not is_small(size_of(project.analysis, node, scope))
    name = last_name(node)
    is_named = bool(GIVES_ONE.search(name)) and not GIVES_NUMBER.search(name)
    return is_named or any(name.startswith("random.") for name in names)


def follows_loop(project: Project, node: ast.AST, scope: Scope, in_loops: frozenset[ast.AST]) -> bool:
    """Return whether an index, or an argument, is computed from what a training loop goes through, or moves on."""
    moving = (ast.For, ast.AugAssign)
    return any(
        binding.node in in_loops and isinstance(binding.node, moving)
        for part in walk(node)
        if isinstance(part, ast.Name)
        for origin in computed_from(project.analysis, part, scope)
        if isinstance(origin.node, (ast.Name, ast.Attribute))
        for binding, _ in bindings_of(project.analysis, origin.node, origin.scope)
    )

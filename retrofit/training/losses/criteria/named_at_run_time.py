"""Losses that are computed by what a text names which only a run knows: a mean, a sum, or a comparison of samples."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, functions_run, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import ATTRIBUTES, LISTS_VARIABLES, LOOKS_UP, VARS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalClass, name_of
from retrofit.analysis.values.texts import is_open
from retrofit.training.torch_api.losses import FUNCTIONS_MODULE, LOSS_MODULES

from ..flow import loss_parts
from ..terms import terms_at

if TYPE_CHECKING:
    from retrofit.training import Project

# Functions that give what a text names, and the place of the text among their arguments.
NAMING = {"getattr": 1, "eval": 0, "import_module": 0, "locate": 0, "attrgetter": 0, "methodcaller": 0}
OF_TORCH = {*LOSS_MODULES, FUNCTIONS_MODULE}  # where each loss is a mean, unless it is told otherwise


def losses_named_at_run_time(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that compute a training loss, or a term of it, of which nothing else is known."""
    analysis, seen = project.analysis, set[ast.AST]()
    models = {call.call for model in project.models for call in model.calls}
    for path in project.paths:
        for (node, scope), is_linear in loss_parts(analysis, path).items():
            if not is_linear or not isinstance(node, ast.Call) or node in seen or node in models:
                continue
            seen.add(node)
            is_known = _is_known(analysis, node, scope)
            if any(
                _is_unknown(analysis, taken, node, where, is_known) for taken, where in _taken(analysis, node, scope)
            ):
                yield node, scope


def _is_known(analysis: Analysis, node: ast.Call, scope: Scope) -> bool:
    values = analysis.evaluate(node.func, scope)
    is_own = any(isinstance(value, (Instance, LocalClass)) for value in values)
    terms = terms_at(analysis, node, scope)
    return is_own or bool(functions_run(analysis, node, scope)) or any(term.reduction for term in terms)


def _taken(analysis: Analysis, node: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what takes by a text the function that a call runs."""
    for origin in origins(analysis, [Origin(node.func, scope)]):
        yield from ((part, origin.scope) for part in walk(origin.node) if _takes_by_text(part))  # type: ignore[misc]


def _is_unknown(analysis: Analysis, taken: ast.expr, loss: ast.Call, scope: Scope, is_known: bool) -> bool:
    """Return whether nothing is known of what is taken, or only what the default of an option names."""
    if not is_known:
        return not _is_plain(analysis, taken, loss, scope)
    is_by_path = isinstance(taken, ast.Call) and NAMING.get(last_name(taken)) == 0
    return is_by_path and is_open(analysis, taken.args[0], scope)  # type: ignore[attr-defined]


def _takes_by_text(node: ast.AST) -> bool:
    """Return whether a node gives what a text names that is not written there: globals()[name], getattr(x, name)."""
    if isinstance(node, ast.Subscript):
        return _lists_names(node.value) and not isinstance(node.slice, ast.Constant)
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node)
    if name in LOOKS_UP and isinstance(node.func, ast.Attribute) and _lists_names(node.func.value):
        return bool(node.args) and not isinstance(node.args[0], ast.Constant)
    place = NAMING.get(name)
    return place is not None and len(node.args) > place and not isinstance(node.args[place], ast.Constant)


def _lists_names(node: ast.expr) -> bool:
    """Return whether this is the dict of the names of something: globals(), vars(losses), losses.__dict__."""
    if isinstance(node, ast.Call):
        return last_name(node) in LISTS_VARIABLES | {VARS}
    return isinstance(node, ast.Attribute) and node.attr == ATTRIBUTES


def _is_plain(analysis: Analysis, taken: ast.AST, loss: ast.Call, scope: Scope) -> bool:
    """Return whether a loss of torch is taken, which is told nothing that could make it another than a mean."""
    made = scope.source.parents.get(taken)  # getattr(nn, name)(**options), partial(getattr(F, name), **options)
    calls = [loss, *([made] if isinstance(made, ast.Call) else [])]
    is_told = any(isinstance(part, ast.Starred) for call in calls for part in call.args)
    is_told |= any(keyword.arg in (None, "reduction") for call in calls for keyword in call.keywords)
    holder = taken.args[0] if isinstance(taken, ast.Call) and last_name(taken) == "getattr" else None
    names = {name_of(value) for value in analysis.evaluate(holder, scope)} if holder is not None else set()
    return not is_told and bool(names) and names <= OF_TORCH

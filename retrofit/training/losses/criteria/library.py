"""Losses of libraries that are another one for a share of the batch.

Criteria that couple its samples, and the loss that a model of transformers returns: a mean over the labels not -100.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import reached_calls
from retrofit.analysis.flow.sources import Origin, closure, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Member, Result, Value
from retrofit.training.optimizer.optimizer_classes import is_of_step
from retrofit.training.torch_api.losses import (
    COUPLING,
    COUPLING_UNLESS,
    COUPLING_WHERE,
    GATHERS_ITSELF,
    TOKEN_MODELS,
    TOKEN_PACKAGES,
)
from retrofit.training.torch_api.runtime import WHOLE_BATCH_LOSS

from ..wrapped import values_inside

if TYPE_CHECKING:
    from ... import Project


def library_couplings(project: Project) -> Iterator[tuple[ast.Call, Scope, str, bool]]:
    """Yield the calls that make such a criterion, with its name, and whether it is given more than a pair.

    The indices of a miner, for instance, are of one rank's samples.
    """
    calls = project.in_batches.of(ast.Call)
    more = {v.call for node, scope in calls if not _is_pair(node) for v in _criteria(project, node.func, scope)}
    for node, scope in reached_calls(project.analysis):
        if not _is_wrapped(project, node, scope):
            for value in _criteria(project, node, scope):
                if value.call is node:
                    yield node, scope, value.builder.rpartition(".")[2], node in more
                    break


def calls_of_criterion(project: Project, builder: ast.Call) -> list[tuple[ast.Call, Scope]]:
    """Return where a batch calls the criterion that a call makes."""
    calls = project.in_batches.of(ast.Call)
    return [(node, scope) for node, scope in calls if builder in {v.call for v in _criteria(project, node.func, scope)}]


def needs_no_gathering(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether a criterion has the samples of all ranks already, or a product is of an optimizer's own step."""
    is_criterion = isinstance(node, ast.Call) and _is_pair(node) and bool(_criteria(project, node.func, scope))
    return is_criterion or is_of_step(project.analysis, node, scope)


def _is_pair(call: ast.Call) -> bool:
    return len(call.args) + len(call.keywords) <= 2


def _criteria(project: Project, node: ast.expr, scope: Scope) -> list[Result]:
    return [v for v in project.analysis.evaluate(node, scope) if isinstance(v, Result) and couples(v)]


def couples(value: Result) -> bool:
    """Return whether what a call makes is a criterion of a library that couples the samples."""
    package, name = value.builder.partition(".")[0], value.builder.rpartition(".")[2]
    if name in COUPLING.get(package, ()):
        return not _has(value.call, GATHERS_ITSELF, True)
    if (package, name) in COUPLING_UNLESS:
        option, wanted = COUPLING_UNLESS[package, name]
        return not _has(value.call, option, wanted)
    option, wanted = COUPLING_WHERE.get((package, name), ("", True))
    return bool(option) and _has(value.call, option, wanted)


def _has(call: ast.Call, option: str, wanted: object) -> bool:
    given = argument_for(call, [], option)
    return isinstance(given, ast.Constant) and given.value == wanted


def _is_wrapped(project: Project, node: ast.Call, scope: Scope) -> bool:
    holder = scope.source.parents.get(node)
    return isinstance(holder, ast.Call) and WHOLE_BATCH_LOSS in project.analysis.called(holder, scope)


def token_losses(
    analysis: Analysis, node: ast.AST, scope: Scope, passed: set[Origin]
) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of models from which a part of a loss comes: itself, or `outputs.loss` of what they give.

    What is before the expressions in `passed` is left out; those that this part comes from are added to them.
    """

    def onward(origin: Origin) -> tuple[()] | None:
        if origin in passed:
            return ()
        passed.add(origin)
        return None

    held = node.value if isinstance(node, ast.Attribute) else node
    if not isinstance(held, ast.Call) and held is node:
        return
    for origin in origins(analysis, [Origin(held, scope)], onward):  # type: ignore[arg-type]
        if isinstance(origin.node, ast.Call) and _counts_tokens(analysis, origin.node, origin.scope):
            yield origin.node, origin.scope


def _counts_tokens(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether the loss that a call gives is such a mean; none of a model's own inputs is a -100."""
    given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not any(_may_be_labels(part) for part in given):
        return False
    labels = argument_for(call, [], "labels")
    inputs = argument_for(call, ["input_ids"], "input_ids")
    if labels is not None and inputs is not None and ast.unparse(labels) == ast.unparse(inputs):
        return False
    names = (name for value in _models(analysis, call.func, scope) for name in _names(analysis, value))
    return any(name.partition(".")[0] in TOKEN_PACKAGES and _is_of_tokens(name) for name in names)


def _may_be_labels(given: ast.expr | ast.keyword) -> bool:
    """Return whether an argument, by its name, or with `**batch`, has labels in it."""
    return (isinstance(given, ast.keyword) and given.arg is None) or "label" in ast.unparse(given).lower()


def _models(analysis: Analysis, function: ast.expr, scope: Scope) -> list[Value]:
    """Return the models that a call can run: `model` of model(x), model.forward(x) and of a wrapper around it."""

    def inside(value: Value) -> list[Value]:
        return [value.base] if isinstance(value, Member) and value.name in ("forward", "module") else []

    return list(closure([*analysis.evaluate(function, scope), *values_inside(analysis, function, scope)], inside))


def _names(analysis: Analysis, value: Value) -> Iterator[str]:
    """Yield the names of the classes of libraries that an object is of, or that its own class is derived from."""
    if isinstance(value, Result):
        yield value.builder
    elif isinstance(value, Instance):
        yield from analysis.classes.bases(value.scope)


def _is_of_tokens(name: str) -> bool:
    return any(part.endswith(TOKEN_MODELS) for part in name.split("."))

"""Losses that a model of transformers computes itself: means over the tokens whose labels are not -100."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.sources import Origin, closure, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Member, Result, Value
from retrofit.training.torch_api.losses import TOKEN_MODELS, TOKEN_PACKAGES

from .wrapped import values_inside


def token_losses(analysis: Analysis, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls of models from which a part of a loss comes: itself, or `outputs.loss` of what they give."""
    held = node.value if isinstance(node, ast.Attribute) else node
    if not isinstance(held, ast.Call) and held is node:
        return
    for origin in origins(analysis, [Origin(held, scope)]):  # type: ignore[arg-type]
        if isinstance(origin.node, ast.Call) and _counts_tokens(analysis, origin.node, origin.scope):
            yield origin.node, origin.scope


def _counts_tokens(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether the loss that a call gives is such a mean; none of a model's own inputs is a -100."""
    if not any(map(_may_be_labels, [*call.args, *call.keywords])):
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

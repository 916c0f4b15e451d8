"""Batches that become one sequence, with the samples as its entries: rearrange(x, "b n d -> 1 b (n d)").

Also by a layer that takes the samples along its second axis, and is given them along the first one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.data import LOADER_PARAMETERS, LOADERS
from retrofit.training.torch_api.modules import SEQUENCE_FIRST, STACKS

from ...data.loaders import TRAIN
from ...data.shards import builders_of
from ..reductions.axes import axes_in_pattern
from ..reductions.reduction import plain_reader
from ..wrapped import values_in_lists

if TYPE_CHECKING:
    from retrofit.training import Project

MOST_POSITIONAL = 3  # arguments of a recurrent layer before its options
UNKNOWN_ORDER = {"movedim", "swapdims", "pack_padded_sequence", "pack_sequence", "pad_sequence", "Rearrange"}


def sequences_of_samples(project: Project) -> Iterator[tuple[ast.Call, Scope, ast.expr]]:
    """Yield the calls, in the training on a batch, that make one sequence of the samples of a tensor."""
    seen: set[ast.AST] = set()
    for node, scope in project.in_batches.of(ast.Call):
        if node not in seen and last_name(node) == "rearrange" and len(node.args) == 2:
            seen.add(node)
            pattern = node.args[1]
            if isinstance(pattern, ast.Constant) and _is_one_sequence(str(pattern.value)):
                yield node, scope, node.args[0]


def layers_over_samples(project: Project) -> Iterator[tuple[ast.Call, Scope, str]]:
    """Yield the calls of attention and recurrent layers that run over the samples of a batch, with the layer's name.

    Where a collate_fn, or something else than a DataLoader, makes the batches, their axes are not known.
    """
    if not _has_samples_first(project):
        return
    seen: set[ast.AST] = set()
    for node, scope in project.in_batches.of(ast.Call):
        if node.args and node not in seen:
            for value in (
                *project.analysis.evaluate(node.func, scope),
                *values_in_lists(project.analysis, node.func, scope),
            ):
                first = _is_batch_first(project, value) if isinstance(value, Result) else None
                if first is not None and _axis(project, node.args[0], scope) == (1 if first else 0):
                    seen.add(node)
                    yield node, scope, value.builder.rpartition(".")[2]  # type: ignore[union-attr]
                    break


def _has_samples_first(project: Project) -> bool:
    """Return whether each training loader is a DataLoader that puts samples together by itself, in a new first axis."""
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    built = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    names = [*LOADER_PARAMETERS, "collate_fn"]
    return bool(built) and all(
        project.analysis.called(call, scope) & LOADERS
        and not arguments_given(project.analysis, call, scope, names, "collate_fn")
        for call, scope in built
    )


def _is_batch_first(project: Project, layer: Result) -> bool | None:
    """Return whether a layer takes the samples along its first axis, None for any other layer."""
    if layer.builder in STACKS and layer.call.args:
        inner = [v for v in project.analysis.evaluate(layer.call.args[0], layer.scope) if isinstance(v, Result)]
        return _is_batch_first(project, inner[0]) if len(inner) == 1 else None
    if layer.builder not in SEQUENCE_FIRST:
        return None
    given = next((k.value for k in layer.call.keywords if k.arg == "batch_first"), None)
    is_open = any(k.arg is None for k in layer.call.keywords) or len(layer.call.args) > MOST_POSITIONAL
    if given is None:
        return None if is_open else False
    return bool(given.value) if isinstance(given, ast.Constant) else None


def _axis(project: Project, node: ast.expr, scope: Scope) -> int | None:
    """Return the axis of the samples in what a layer is given; None where something on the way may change it."""
    steps = list(origins(project.analysis, [Origin(node, scope)]))
    for step in steps:
        if isinstance(step.node, ast.Call) and last_name(step.node) in UNKNOWN_ORDER:
            return None
        if isinstance(step.node, ast.Name) and _is_given_from_nowhere(project, step.node, step.scope):
            return None
    kind = plain_reader(project).kind(node, scope)
    return kind.axis if kind.has_rows else None


def _is_given_from_nowhere(project: Project, name: ast.Name, scope: Scope) -> bool:
    """Return whether this is a parameter of a function whose calls are not seen: of a block in a list of modules."""
    owner, bindings = live_bindings(name, scope)
    is_parameter = any(binding.kind == "parameter" for binding in bindings)
    return is_parameter and not project.analysis.callers(owner.node)  # type: ignore[arg-type]


def _is_one_sequence(pattern: str) -> bool:
    """Return whether the first axis, of the samples, becomes the second after one of size 1, and later axes one.

    `b d -> 1 b d` alone is the first state of a recurrent layer.
    """
    before, _, after = pattern.partition("->")
    given, axes = axes_in_pattern(before), axes_in_pattern(after)
    if len(given) < 2 or len(axes) < 3 or len(given[0]) != 1 or given[0] == ["1"]:
        return False
    return axes[0] == ["1"] and axes[1] == given[0] and any(len(axis) > 1 for axis in axes[2:])

"""Batches that become one sequence, with the samples as its entries: rearrange(x, "b n d -> 1 b (n d)")."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope

from .reductions.axes import axes_in_pattern

if TYPE_CHECKING:
    from retrofit.training import Project


def sequences_of_samples(project: Project) -> Iterator[tuple[ast.Call, Scope, ast.expr]]:
    """Yield the calls, in the training on a batch, that make one sequence of the samples of a tensor."""
    seen: set[ast.AST] = set()
    for node, scope in project.in_batches:
        if isinstance(node, ast.Call) and node not in seen and last_name(node) == "rearrange" and len(node.args) == 2:
            seen.add(node)
            pattern = node.args[1]
            if isinstance(pattern, ast.Constant) and _is_one_sequence(str(pattern.value)):
                yield node, scope, node.args[0]


def _is_one_sequence(pattern: str) -> bool:
    """Return whether the first axis, of the samples, becomes the second after one of size 1, and later axes one.

    `b d -> 1 b d` alone is the first state of a recurrent layer.
    """
    before, _, after = pattern.partition("->")
    given, axes = axes_in_pattern(before), axes_in_pattern(after)
    if len(given) < 2 or len(axes) < 3 or len(given[0]) != 1 or given[0] == ["1"]:
        return False
    return axes[0] == ["1"] and axes[1] == given[0] and any(len(axis) > 1 for axis in axes[2:])

"""Tensors that are filled at places which are computed: `buffer.scatter_(0, places, rows)`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.data.shapes import is_about_shape
from retrofit.training.torch_api.tensors import ACCUMULATES, FILLED, SCATTERS

from ..reductions import kinds
from ..reductions.kinds import CONSTANT, Kind

if TYPE_CHECKING:
    from ..reductions.reader import Frame, LossReader


def scattered(reader: LossReader, name: str, owner: Scope, frame: Frame | None) -> Iterator[Kind]:
    """Yield what depends on other samples in what is put into a tensor in place, in statements of their own."""
    known: dict[Scope, dict[str, list[ast.Call]]] = reader.analysis.fact("scattered", dict)
    if owner not in known:
        known[owner] = _scattered_in(owner)
    return (put_by(reader, call, owner, frame) for call in known[owner].get(name, ()))


def put_by(reader: LossReader, call: ast.Call, scope: Scope, frame: Frame | None) -> Kind:
    """Return what depends on other samples in what a call puts into a tensor: the rows, or their places."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    found = kinds.join(reader.kind(part, scope, frame) for part in given)
    coupled = found.coupled | found.leaves
    if found.has_rows and _adds_up_by_group(reader, call, scope):
        return kinds.coupled_by(found, (call, scope))
    return replace(kinds.of(kinds.ROWS, kinds.FLAT), coupled=coupled) if coupled else CONSTANT


def _adds_up_by_group(reader: LossReader, call: ast.Call, scope: Scope) -> bool:
    """Return whether rows are added up in a tensor of a fixed number of places: torch.zeros(classes).index_add(0, ...).

    Of a tensor with a place for each node or sample of the batch, each process has its own places.
    """
    method, dimension = call.func, call.args[0] if call.args else None
    if not isinstance(method, ast.Attribute) or method.attr.rstrip("_") not in ACCUMULATES:
        return False
    if not isinstance(dimension, ast.Constant) or dimension.value != 0:
        return False
    return any(
        _is_of_fixed_size(reader, origin.node, origin.scope)
        for origin in origins(reader.analysis, [Origin(method.value, scope)])
        if isinstance(origin.node, ast.Call) and last_name(origin.node) in FILLED
    )


def _is_of_fixed_size(reader: LossReader, made: ast.Call, scope: Scope) -> bool:
    shape = made.args[0] if made.args else None
    size = shape.elts[0] if isinstance(shape, (ast.Tuple, ast.List)) and shape.elts else shape
    if size is None or reader.size_factors.of(size, scope):
        return False
    return not any(is_about_shape(part.node) for part in computed_from(reader.analysis, size, scope))


def _scattered_in(scope: Scope) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = defaultdict(list)
    for node in own_nodes(scope.node):
        call = node.value if isinstance(node, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        is_put = isinstance(method, ast.Attribute) and method.attr.rstrip("_") in SCATTERS
        if is_put and isinstance(method.value, ast.Name):  # type: ignore[union-attr]
            found[method.value.id].append(call)  # type: ignore[union-attr, arg-type]
    return found

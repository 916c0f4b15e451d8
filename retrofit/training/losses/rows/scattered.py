"""Tensors that are filled at places which are computed: `buffer.scatter_(0, places, rows)`."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.training.torch_api.tensors import SCATTERS

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
    return replace(kinds.of(kinds.ROWS, kinds.FLAT), coupled=coupled) if coupled else CONSTANT


def _scattered_in(scope: Scope) -> dict[str, list[ast.Call]]:
    found: dict[str, list[ast.Call]] = defaultdict(list)
    for node in own_nodes(scope.node):
        call = node.value if isinstance(node, ast.Expr) else None
        method = call.func if isinstance(call, ast.Call) else None
        is_put = isinstance(method, ast.Attribute) and method.attr.rstrip("_") in SCATTERS
        if is_put and isinstance(method.value, ast.Name):  # type: ignore[union-attr]
            found[method.value.id].append(call)  # type: ignore[union-attr, arg-type]
    return found

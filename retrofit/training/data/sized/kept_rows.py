"""Rows, all of them the same, that a layer keeps for the batch size: `self.ones = torch.ones(batch_size, 1)`."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes, place_of
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import PARAMETER_CLASSES, REGISTER_BUFFER
from retrofit.training.torch_api.runtime import OF_BATCH_IN_HAND
from retrofit.training.torch_api.tensors import ENTRYWISE, FILLED, RETURNS_ITSELF, SAME_TENSOR

if TYPE_CHECKING:
    from retrofit.training import Project

SAME_ROWS = (FILLED - {"eye", "arange", "linspace", "empty"}) | {"repeat", "expand"}
KEEPS_ROWS = SAME_TENSOR | RETURNS_ITSELF | {"Variable"}
ARITHMETIC = ENTRYWISE & {"add", "sub", "mul", "div", "where", "abs", "neg"}
JOINS = {"cat", "concat"}


@dataclass(frozen=True)
class KeptRows:
    """A place where a method reads the rows; `samples`: its first parameter, which may have as many."""

    read: ast.Attribute
    scope: Scope
    samples: str | None


def reads_of_kept_rows(project: Project, made: ast.AST, size: ast.expr, scope: Scope) -> list[KeptRows] | None:
    """Return where the rows that `made` makes in a class's `__init__` are read as its attributes.

    None where one of them cannot be cut to the rows of a batch: they are not all the same, or the batch is another
    dimension, or they are read elsewhere than in methods of the class.
    """
    owner = scope.enclosing_class()
    if getattr(scope.node, "name", "") != "__init__" or owner is None or not _is_first(made, size):
        return None
    rows = _Rows(project, made, scope)
    if not rows.attributes or rows.is_lost:
        return None
    found = []
    for node, where in reached_nodes(project.analysis).of(ast.Attribute):
        if node.attr not in rows.attributes or where is scope or not _is_of(project, node, where, owner):
            continue
        if ast.unparse(node.value) != "self" or not isinstance(node.ctx, ast.Load):
            return None
        if not _is_cut(project, node, where):
            found.append(KeptRows(node, where, _first_parameter(where)))
    return found


def _is_of(project: Project, node: ast.Attribute, scope: Scope, owner: Scope) -> bool:
    """Return whether an attribute is one of a class's objects."""
    if ast.unparse(node.value) == "self":
        return scope.enclosing_class() is owner
    values = project.analysis.evaluate(node.value, scope)
    return any(isinstance(value, Instance) and value.scope is owner for value in values)


class _Rows:
    """The variables and attributes of a class's `__init__` that have the rows which a call makes."""

    def __init__(self, project: Project, made: ast.AST, scope: Scope) -> None:
        self._project, self._made, self._scope = project, made, scope
        self._names: set[str] = set()
        self.attributes: set[str] = set()
        self.is_lost = False
        setting = own_nodes(scope.node).of(ast.Assign, ast.Call)
        for node in sorted(setting, key=place_of):
            for target, value in _set_by(node):
                self._set(target, value)

    def _set(self, target: ast.expr | str, value: ast.expr) -> None:
        has_rows = self._has_rows(value)
        self.is_lost = self.is_lost or (not has_rows and any(self._is_known(part) for part in walk(value)))
        name = target if isinstance(target, str) else ast.unparse(target).removeprefix("self.")
        if isinstance(target, ast.Name):
            self._names = self._names | {name} if has_rows else self._names - {name}
        else:
            self.attributes = self.attributes | {name} if has_rows else self.attributes - {name}
            self.is_lost = self.is_lost or (has_rows and not name.isidentifier())

    def _is_known(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Attribute):
            return ast.unparse(node.value) == "self" and node.attr in self.attributes
        return node is self._made or (isinstance(node, ast.Name) and node.id in self._names)

    def _has_rows(self, node: ast.expr) -> bool:
        """Return whether an expression has the rows, one for each sample, in its first dimension."""
        if self._is_known(node):
            return True
        if isinstance(node, ast.BinOp):
            return self._has_rows(node.left) or self._has_rows(node.right)
        if not isinstance(node, ast.Call) or (not node.args and not isinstance(node.func, ast.Attribute)):
            return False
        name = last_name(node)
        if name in JOINS:
            return self._are_joined(node)
        is_parameter = self._project.analysis.called(node, self._scope) & PARAMETER_CLASSES
        of = [*node.args[:1], *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
        return bool(is_parameter or name in KEEPS_ROWS | ARITHMETIC) and any(self._has_rows(part) for part in of)

    def _are_joined(self, call: ast.Call) -> bool:
        axes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis"))]
        parts = call.args[0].elts if call.args and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
        is_inner = len(axes) == 1 and isinstance(axes[0], ast.Constant) and axes[0].value not in (0, None)
        return is_inner and any(self._has_rows(part) for part in parts)


def _set_by(node: ast.AST) -> Iterator[tuple[ast.expr | str, ast.expr]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.Call) and last_name(node) == REGISTER_BUFFER and len(node.args) > 1:
        name = node.args[0]
        yield (str(name.value) if isinstance(name, ast.Constant) else ""), node.args[1]


def _is_first(made: ast.AST, size: ast.expr) -> bool:
    """Return whether a call makes rows that are all the same, as many of them as `size` says."""
    if not isinstance(made, ast.Call) or last_name(made) not in SAME_ROWS or not made.args:
        return False
    first = made.args[0]
    return size is (first.elts[0] if isinstance(first, (ast.Tuple, ast.List)) and first.elts else first)


def _first_parameter(scope: Scope) -> str | None:
    parameters: Collection[ast.arg] = scope.node.args.args[1:2] if scope.is_function else ()  # type: ignore[union-attr]
    bound = [parameter.arg for parameter in parameters if len(scope.bindings.get(parameter.arg, [])) == 1]
    return bound[0] if bound else None


def _is_cut(project: Project, read: ast.Attribute, scope: Scope) -> bool:
    """Return whether only the first rows are read: `self.ones[:rd.data.own_batch_size(len(self.ones))]`."""
    outer = scope.source.parents[read]
    cut = outer.slice.upper if isinstance(outer, ast.Subscript) and isinstance(outer.slice, ast.Slice) else None
    calls = [part for part in scope.source.ancestors(read) if isinstance(part, ast.Call)]
    is_of_cut = any(project.analysis.called(call, scope) & OF_BATCH_IN_HAND for call in calls)
    return is_of_cut or (isinstance(cut, ast.Call) and bool(project.analysis.called(cut, scope) & OF_BATCH_IN_HAND))

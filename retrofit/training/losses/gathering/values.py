"""Rows and sizes of a batch in expressions, where some of these are gathered over the ranks."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from retrofit.analysis.calls import CallSite, default_of, given_parameters
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.further_arguments import further_arguments
from retrofit.analysis.flow.keys import keys_inside
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import MOST_KEYS, Origin, entries
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import FUNCTIONS, Binding, Function, Scope
from retrofit.training.data.batch_values import BATCH
from retrofit.training.torch_api.tensors import SHAPE_ATTRIBUTES, TRANSPOSED

from ..reductions.lists import SAMPLES, Lists
from .permutations import inverted, permutation_of

if TYPE_CHECKING:
    from retrofit.training import Project

FIXED = "fixed"  # the same on all ranks
WHOLE = "whole"  # computed from gathered rows, and the same on all ranks
PLAIN = "plain"  # a row for each sample
VIEWS = "views"  # rows of several views of all samples, one view after the other
PARTS = "parts"  # several rows for each sample, next to each other
SIZE = "size"  # computed from the number of this rank's samples alone
OTHER = "other"
ROWS = frozenset({PLAIN, VIEWS, PARTS})
SOME_ROWS = "some of the rows are chosen"
OTHER_ORDER = "rows are in another order"
TAKEN_APART = "rows are taken apart"
ONE_ROW = "one row is taken out"
RESHAPED = "rows are reshaped in a way that is not followed"
SIZE_IN_ROWS = "the number of samples goes into single rows"
Path = tuple[object, ...]


@dataclass(frozen=True)
class Value:
    """What an expression has of a batch; of a SIZE the numbers of samples that it is computed from."""

    kind: str
    sizes: frozenset[tuple[ast.expr, Scope]] = frozenset()
    reason: str = ""  # of OTHER


def other(reason: str) -> Value:
    return Value(OTHER, reason=reason)


def join(values: Iterable[Value]) -> Value:
    """Return what is computed entry by entry from several things."""
    found = list(values)
    kinds = {value.kind for value in found}
    if WHOLE in kinds:  # where the other ones meet it, they are looked at
        return Value(WHOLE)
    unclear = next((value for value in found if value.kind == OTHER), None)
    if unclear is not None:
        return unclear
    rows = kinds & ROWS
    if rows and SIZE in kinds:
        return other(SIZE_IN_ROWS)
    if len(rows - {PLAIN}) > 1:
        return other("rows in different orders meet")
    if rows:
        return Value(next(iter(rows - {PLAIN}), PLAIN))
    sizes = frozenset().union(*(value.sizes for value in found))
    return Value(SIZE, sizes) if SIZE in kinds else Value(FIXED)


class ValueReader:
    """Answers what expressions have of a batch. `gathered`: the expressions that are gathered."""

    def __init__(self, project: Project, lists: Lists, gathered: Collection[ast.expr]) -> None:
        from .calls import CallValues

        self.project, self.analysis, self.lists, self.gathered = project, project.analysis, lists, gathered
        self.in_batches = project.nodes_in_batches
        self.in_loops = project.nodes_in_loops
        self.calls = CallValues(self)
        self._known: Memory[Value] = Memory(Value(FIXED), other("it is computed in too many steps"))

    def value(self, node: ast.expr, scope: Scope, path: Path = ()) -> Value:
        """Return what an expression has, or its entry at `path`."""
        if node in self.gathered:
            return Value(WHOLE)
        path = path[:MOST_KEYS]  # of what is its own entry (rows = rows[0]), which would have no end
        return self._known.once((node, scope, path), lambda: self._of(node, scope, path))

    def all_of(self, nodes: Iterable[ast.expr], scope: Scope) -> Value:
        return join(self.value(node, scope) for node in nodes)

    def _of(self, node: ast.expr, scope: Scope, path: Path) -> Value:
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Lambda)):
            return Value(FIXED)
        if isinstance(node, ast.Name):
            return self._of_name(node, scope, path)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope, path)
        if isinstance(node, ast.Call):
            is_batch = node in self.project.batch_values.draws_one
            return Value(PLAIN) if is_batch else self.calls.value(node, scope, path)
        if isinstance(node, ast.Subscript):
            return self._of_setting(self._of_subscript(node, scope, path), node, scope)
        if isinstance(node, (ast.Tuple, ast.List)):
            return self._of_display(node, scope, path)
        if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
            return self.value(node.elt, scope, path[1:])
        if isinstance(node, ast.DictComp):
            return self.value(node.value, scope, path[1:])
        if isinstance(node, ast.Dict):
            start = Origin(node, scope, path)  # type: ignore[arg-type]
            asked = list(entries(start)) or entries(start.to(node, keys=()))
            return join(self.value(entry.node, scope, entry.keys) for entry in asked)  # type: ignore[arg-type]
        if isinstance(node, (ast.NamedExpr, ast.Starred)):
            return self.value(node.value, scope, path)
        if isinstance(node, ast.IfExp):
            return join(self.value(part, scope, path) for part in (node.body, node.orelse))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return self.product(node.left, node.right, scope)
        return self.all_of((part for part in children(node) if isinstance(part, ast.expr)), scope)

    def product(self, left: ast.expr, right: ast.expr, scope: Scope) -> Value:
        """Return what a matrix product has: rows, of rows times a matrix that is fixed."""
        first, second = self.value(left, scope), self.value(right, scope)
        if WHOLE in (first.kind, second.kind) or second.kind == FIXED:
            return join([first, second])
        return other("samples are added up, or compared, before all of them are there")

    def _of_display(self, node: ast.Tuple | ast.List, scope: Scope, path: Path) -> Value:
        key = path[0] if path else None
        is_spread = any(isinstance(part, ast.Starred) for part in node.elts)
        if isinstance(key, int) and -len(node.elts) <= key < len(node.elts) and not is_spread:
            return self.value(node.elts[key], scope, path[1:])
        return join(self.value(part, scope, path[1:]) for part in node.elts)

    # Variables.

    def _of_name(self, node: ast.Name, scope: Scope, path: Path) -> Value:
        owner, bindings = live_bindings(node, scope)
        around = set(scope.source.ancestors(node))
        items = {binding.node for binding in bindings if binding.kind == "item"}
        if items & around:  # of the loops that have such a variable the one that this is in
            bindings = [binding for binding in bindings if binding.node not in items - around]
        found = [self._of_binding(binding, binding.elsewhere or owner, path) for binding in bindings]
        value = join([*found, *self._put_in(node, scope, path)])
        return self._of_setting(_counted(value, node, scope), node, scope)

    def _of_setting(self, value: Value, node: ast.expr, scope: Scope) -> Value:
        """Return the value of a variable or an entry, which is a size where the batch size is read from it."""
        is_setting = value.kind == FIXED and (node, scope) in self.project.batch_sizes
        return Value(SIZE, frozenset([(node, scope)])) if is_setting else value

    def _put_in(self, node: ast.expr, scope: Scope, path: Path = ()) -> list[Value]:
        """Return the values that are put into a list or a dict, at `path` if that has an entry."""
        found = stored_in(self.analysis, node, scope)
        return [self.value(s.value, s.scope) for s in found if keys_inside(s, path[:1] or (None,)) is not None]  # type: ignore[arg-type]

    def _of_binding(self, binding: Binding, scope: Scope, path: Path) -> Value:
        if binding.kind == "parameter":
            return self._of_parameter(binding.name, scope, path)
        if isinstance(binding.node, ast.AugAssign):
            return self.value(binding.node.value, scope)
        if binding.value is None:
            return Value(FIXED)  # an import, a function, a class
        if binding.kind == "item":
            return self._of_item(binding, scope, path)
        if binding.kind == "value":
            return self.value(binding.value, scope, (*binding.path, *path))
        if binding.kind == "enter" and self.value(binding.value, scope).kind == FIXED:
            return Value(FIXED)  # with open(path) as file
        return other(f"{binding.name} is set in a way that is not followed")

    def _of_item(self, binding: Binding, scope: Scope, path: Path) -> Value:
        assert binding.value is not None
        if binding.node in self.project.batch_values.loops:
            return Value(PLAIN if self.project.batch_values.is_batch(binding) else FIXED)
        found = self.value(binding.value, scope, (None, *binding.path))
        if found.kind in ROWS and SAMPLES in self.lists.entries(binding.value, scope):
            return other("it goes through the samples one by one")
        return found

    def _of_parameter(self, name: str, scope: Scope, path: Path) -> Value:
        if not isinstance(scope.node, FUNCTIONS) or name == "self":
            return Value(FIXED)
        found = []
        names = given_parameters(scope)
        for site in self._sites(scope.node):
            if name not in names:
                found += [self.value(*place) for place in further_arguments(site, scope, name, path)]
                continue
            default = default_of(scope.node, name)
            argument, spread = site.argument(names, name), site.spread_for(names, name)
            if argument is None and spread is not None:  # model(**batch)
                values, key, where = spread
                found.append(self.value(values, where, (key, *path)))
                continue
            given, where = argument or (default, scope.parent or scope)
            found += [self.value(given, where, path)] if given is not None else []
        if found:
            return join(found)
        uses = (part for part in walk(scope.node) if isinstance(part, ast.Name) and part.id == name)
        is_of_batch = any(BATCH in self.project.batch_values.sources_of(part, scope) for part in islice(uses, 1))
        return other(f"what {name} is given cannot be seen") if is_of_batch else Value(FIXED)

    def _sites(self, function: Function) -> list[CallSite]:
        """Return the calls that give a function its parameters: those of the training, if there are some."""
        sites = self.analysis.callers(function)
        return [site for site in sites if site.call in self.in_batches] or sites

    def _of_attribute(self, node: ast.Attribute, scope: Scope, path: Path) -> Value:
        bindings = bindings_of(self.analysis, node, scope)
        own = self._of_own(node, scope, path) if bindings or self._put_in(node, scope) else None
        if (node, scope) in self.project.batch_sizes and (own is None or own.kind != WHOLE):
            return Value(SIZE, frozenset([(node, scope)]))
        if own is not None:
            return own
        base = self.value(node.value, scope)
        if node.attr in SHAPE_ATTRIBUTES - {"shape"} or base.kind in (FIXED, WHOLE):
            return Value(FIXED) if node.attr in SHAPE_ATTRIBUTES - {"shape", "nbytes"} else base
        if base.kind in ROWS and node.attr == "shape":
            return unpacked_shape(path)
        return other("rows of samples are not in the first axis") if node.attr in TRANSPOSED else base

    def _of_own(self, node: ast.Attribute, scope: Scope, path: Path) -> Value:
        """Return what an attribute of an object of the project has: a setting, or something of a batch."""
        found = []
        for binding, where in bindings_of(self.analysis, node, scope):
            found.append(self._of_binding(binding, binding.elsewhere or where, path))
        value = join([*found, *self._put_in(node, scope)])
        if value.kind in ROWS:
            return other(f"{ast.unparse(node)} keeps samples")
        return value

    # Entries.

    def _of_subscript(self, node: ast.Subscript, scope: Scope, path: Path) -> Value:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else _number(node.slice)
        shape = node.value.func if isinstance(node.value, ast.Call) and not node.value.args else node.value
        if isinstance(shape, ast.Attribute) and shape.attr in ("shape", "size"):
            base = self.value(shape.value, scope)
            if base.kind in ROWS:
                return Value(FIXED) if _is_of_row(node.slice) else size_along(node, scope, _number(node.slice))
            is_before = base.kind == OTHER and node not in self.in_batches
            return Value(FIXED) if is_before else base  # how many samples a data set has, in whatever order
        if isinstance(key, (str, int)) and not isinstance(key, bool):
            return self._of_entry(node, key, scope, path)
        permutation = inverted(self.analysis, node.slice, scope)
        if permutation is not None:
            return PermutedReader(self, permutation).value(node.value, scope, path)
        base, index = self.value(node.value, scope, path), self._of_index(node.slice, scope)
        if base.kind not in ROWS:
            return join([base, index])
        return self._of_selection(node.slice, base, index, scope)

    def _of_entry(self, node: ast.Subscript, key: str | int, scope: Scope, path: Path) -> Value:
        base = _counted(self.value(node.value, scope, (key, *path)), node, scope)
        if base.kind in ROWS and isinstance(key, int) and not path:
            entries = self.lists.entries(node.value, scope)
            is_listed = isinstance(node.value, (ast.Name, ast.Attribute)) and SAMPLES not in entries
            return base if is_listed else other(ONE_ROW)
        return base

    def _of_index(self, index: ast.expr, scope: Scope) -> Value:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        found = []
        for part in parts:
            inner = [part.lower, part.upper, part.step] if isinstance(part, ast.Slice) else [part]
            found += [self.value(one, scope) for one in inner if one is not None]
        return join(found)

    def _of_selection(self, index: ast.expr, base: Value, chosen: Value, scope: Scope) -> Value:
        """Return what x[index] has of rows: all of them, whole views, or each n-th one."""
        first = index.elts[0] if isinstance(index, ast.Tuple) and index.elts else index
        if not isinstance(first, ast.Slice):
            return other(SOME_ROWS)
        if first.lower is None and first.upper is None and first.step is None:
            return base
        if first.step is not None:
            return base if base.kind == PARTS else other(SOME_ROWS)
        return base if base.kind == VIEWS and chosen.kind == SIZE else other(SOME_ROWS)


class PermutedReader(ValueReader):
    """Reads rows of which a permutation is undone afterwards: y of y[argsort(order)]; others are in another order."""

    def __init__(self, reader: ValueReader, permutation: ast.expr) -> None:
        super().__init__(reader.project, reader.lists, reader.gathered)
        self.reader, self.permutation = reader, permutation
        self._entered: set[ast.AST] = set()  # calls that lead from the rows to the permutation

    def _of(self, node: ast.expr, scope: Scope, path: Path) -> Value:
        self._entered.update([node] if isinstance(node, ast.Call) else [])
        return super()._of(node, scope, path)

    def _sites(self, function: Function) -> list[CallSite]:
        return [site for site in super()._sites(function) if site.call in self._entered]

    def _of_subscript(self, node: ast.Subscript, scope: Scope, path: Path) -> Value:
        if permutation_of(self.analysis, node.slice, scope) is self.permutation:
            return self.reader.value(node.value, scope, path)
        return super()._of_subscript(node, scope, path)

    def _of_item(self, binding: Binding, scope: Scope, path: Path) -> Value:
        found = super()._of_item(binding, scope, path)
        return other("rows in different orders meet") if found.kind in ROWS else found


def _counted(value: Value, node: ast.expr, scope: Scope) -> Value:
    """Return the value of a variable that holds a number of samples of which the origin cannot be counted."""
    is_open = value.kind == SIZE and not value.sizes
    return Value(SIZE, frozenset([(node, scope)])) if is_open else value


def size_along(node: ast.expr, scope: Scope, axis: int | None) -> Value:
    """Return what an expression is that is the size of rows along an axis."""
    if axis is None:
        return other("the shape of one rank's rows is used as a whole")
    return Value(SIZE, frozenset([(node, scope)])) if axis == 0 else Value(FIXED)


def unpacked_shape(path: Path) -> Value:
    """Return what the entry at `path` of the shape of rows is: n, d = x.shape."""
    if not path or not isinstance(path[0], int):
        return other("the shape of one rank's rows is used as a whole")
    return Value(FIXED) if path[0] != 0 else Value(SIZE)  # what it is assigned to can be counted


def _is_of_row(index: ast.expr) -> bool:
    """Return whether an index leaves out how many samples there are: x.shape[1:]."""
    first = _number(index.lower) if isinstance(index, ast.Slice) and index.lower is not None else None
    return first is not None and first > 0


def _number(node: ast.expr) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        return -node.operand.value if isinstance(node.operand.value, int) else None
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None

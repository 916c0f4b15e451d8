"""Entries of what a loop goes through: samples of a batch, or outputs of several layers, scales and heads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, is_followed, origins, sources
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.memory import Memory
from retrofit.analysis.nodes import COMPREHENSIONS
from retrofit.analysis.python_api import CONTAINER_NAMES
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Item, Result, Value
from retrofit.training.data.batch_values import BATCH, BatchValues
from retrofit.training.data.batches import is_of_several
from retrofit.training.torch_api.modules import CHILDREN, LAYER_PACKAGE, MODULES, WRAPPERS, is_layer_class
from retrofit.training.torch_api.tensors import SAME_ENTRIES, SPLITS, TRANSPOSED, TRANSPOSES

from ..wrapped import functions_inside, values_inside

LAYERS = "layers"  # a list, tuple or dict with as many entries whatever the batch is: of layers, scales, heads
SAMPLES = "samples"  # rows of a tensor, or a list with an entry for each sample
DRAWN = "drawn"  # what a loader gives: a tensor of samples, or a list of such tensors
UNKNOWN = "unknown"
Entries = frozenset[str]
NOTHING: Entries = frozenset()
CONTAINERS = CONTAINER_NAMES | {"zip", "reversed", "sorted", "enumerate"}
COUNTING = frozenset({"range", "enumerate", "zip", "reversed"})


def _one(kind: str) -> Entries:
    return frozenset([kind])


class Lists:
    """Answers what the entries of an expression are.

    `goes_through` tells of the iterable of a loop, `is_within` of a node, whether it is run once for each sample.
    """

    def __init__(
        self,
        analysis: Analysis,
        values: BatchValues,
        is_within: Callable[[ast.AST, Scope], bool],
        goes_through: Callable[[ast.expr, Scope], bool],
    ) -> None:
        self._analysis, self._values = analysis, values
        self._is_within, self._goes_through = is_within, goes_through
        # A list that depends on itself, `outs = [f(o) for o in outs]`, has what its other values have.
        self._known: Memory[Entries] = Memory(NOTHING, too_deep=_one(UNKNOWN))

    def is_fixed(self, number: ast.expr, scope: Scope) -> bool:
        """Return whether this number is the length of a list that has as many entries whatever the batch is."""
        return self.counted_by(number, scope) == {LAYERS}

    def counted_by(self, number: ast.expr, scope: Scope) -> Entries:
        """Return what the entries are that a number counts: len(outputs) - 1."""
        found = origins(self._analysis, [Origin(number, scope)], _terms)
        measured = (o for o in found if isinstance(o.node, ast.Call) and last_name(o.node) == "len" and o.node.args)
        return self._union(o.to(o.node.args[0]) for o in measured)  # type: ignore[union-attr]

    def entries(self, node: ast.expr, scope: Scope) -> Entries:
        """Return what the entries are that an iteration over an expression gives, or an index in it."""
        return self._at(Origin(node, scope))

    def _at(self, origin: Origin) -> Entries:
        return self._known.once(origin, lambda: self._of(origin))

    def _union(self, found: Iterable[Origin]) -> Entries:
        return NOTHING.union(*(self._at(origin) for origin in found))

    def _of(self, origin: Origin) -> Entries:
        node, scope, keys = origin
        if isinstance(node, ast.AugAssign):
            return _one(SAMPLES) if self._is_within(node, scope) else self._at(origin.to(node.value))
        if not is_followed(node):
            return _one(UNKNOWN)
        if isinstance(node, ast.Call):
            return self._of_call(node, origin)
        if isinstance(node, ast.BinOp):
            return self._union(origin.to(part) for part in (node.left, node.right))
        if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)) and not keys:
            return self._of_display(node, origin)
        if isinstance(node, COMPREHENSIONS) and not keys:
            return NOTHING.union(*(self._of_comprehension(part.iter, scope) for part in node.generators))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
            return self._at(origin.to(node.value))  # out[:, 1:]
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._of_variable(node, origin)
        return self._union(sources(self._analysis, origin))

    def _of_display(self, node: ast.Tuple | ast.List | ast.Set | ast.Dict, origin: Origin) -> Entries:
        if isinstance(node, ast.Dict):
            spread = [value for key, value in zip(node.keys, node.values) if key is None]
        else:
            spread = [part.value for part in node.elts if isinstance(part, ast.Starred)]
        if spread:
            return self._union(origin.to(part) for part in spread)
        is_empty = not (node.keys if isinstance(node, ast.Dict) else node.elts)
        return NOTHING if is_empty else _one(LAYERS)

    def _of_comprehension(self, iterable: ast.expr, scope: Scope) -> Entries:
        if self._goes_through(iterable, scope):
            return _one(SAMPLES)
        if isinstance(iterable, ast.Call) and last_name(iterable) in COUNTING and iterable.args:
            return NOTHING.union(*(self._of_comprehension(part, scope) for part in iterable.args))
        counted = self.counted_by(iterable, scope)
        if counted or isinstance(iterable, ast.Constant):
            return counted or _one(LAYERS)
        is_of_batch = bool(self._values.sources_of(iterable, scope))
        return self.entries(iterable, scope) if is_of_batch else _one(LAYERS)

    def _of_variable(self, node: ast.Name | ast.Attribute, origin: Origin) -> Entries:
        """Return what the entries of a variable are, and what is put into it one by one."""
        scope, keys = origin.scope, origin.keys
        bindings = live_bindings(node, scope)[1] if isinstance(node, ast.Name) else []
        bindings = bindings or [binding for binding, _ in bindings_of(self._analysis, node, scope)]
        drawn = [binding for binding in bindings if binding.node in self._values.loops]
        if drawn and not keys and all(is_of_several(self._analysis, binding, scope) for binding in drawn):
            return _one(LAYERS)
        if drawn:
            inner = keys if any(binding.path for binding in drawn) else keys[1:]
            return _one(DRAWN if all(isinstance(key, str) for key in inner) else UNKNOWN)
        if isinstance(node, ast.Attribute) and node.attr in TRANSPOSED | {"data"}:
            return _one(LAYERS) if node.attr == "T" else self._at(origin.to(node.value))
        if any(map(is_layer_class, self._analysis.named(node, scope))):
            return _one(LAYERS)  # a list of modules, one that a loop goes through
        put_in = stored_in(self._analysis, node, scope) if not keys else []
        found = self._union(sources(self._analysis, origin))
        for stored in put_in:
            if self._is_within(stored.value, stored.scope):
                found |= _one(SAMPLES)
            elif stored.is_spread:
                found |= self.entries(stored.value, stored.scope)
            else:
                found |= _one(LAYERS)
        return found or (NOTHING if bindings and not keys else _one(UNKNOWN))

    def _of_call(self, node: ast.Call, origin: Origin) -> Entries:
        scope, keys, name = origin.scope, origin.keys, last_name(node)
        functions = functions_inside(self._analysis, node, scope)
        if functions:
            places = [(value, f.scope) for f in functions for value in returns_of(f.node)]
            return self._union(origin.to(*place) for place in places) if places else _one(UNKNOWN)
        if name in CHILDREN | MODULES:
            return _one(LAYERS)
        if name in CONTAINERS and isinstance(node.func, ast.Name):
            if keys:
                return self._union(sources(self._analysis, origin))
            return self._union(origin.to(part) for part in node.args) | (_one(LAYERS) if node.keywords else NOTHING)
        called = values_inside(self._analysis, node.func, scope) or self._analysis.evaluate(node.func, scope)
        values: list[Value] = [
            value.base if isinstance(value, Item) else value for value in called
        ]  # one of a ModuleList
        made = [value for value in values if isinstance(value, Result) and value.builder not in WRAPPERS]
        if made and all(value.builder.startswith(LAYER_PACKAGE) for value in made):
            return _one(SAMPLES) if not keys else _one(UNKNOWN)  # a tensor; one of its rows, or of a pair
        return self._of_tensor(node, name, origin)

    def _of_tensor(self, node: ast.Call, name: str, origin: Origin) -> Entries:
        """Return what the entries are of what a function of torch, or a method, makes of a tensor."""
        scope = origin.scope
        is_torch = any(called.startswith("torch.") for called in self._analysis.called(node, scope))
        if name in SPLITS and (is_torch or isinstance(node.func, ast.Attribute)):
            return _of_split(node, is_torch)
        if is_torch:
            return self._at(origin.to(node.args[0])) if node.args else _one(UNKNOWN)
        if not isinstance(node.func, ast.Attribute) or BATCH not in self._values.sources_of(node.func.value, scope):
            return _one(UNKNOWN)
        first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        if name in TRANSPOSES and (name == "t" or (first is not None and _moves_samples(node, name, first))):
            return _one(LAYERS)
        found = self._at(origin.to(node.func.value))
        return found if name in SAME_ENTRIES or found - {UNKNOWN} else _one(UNKNOWN)


def _terms(origin: Origin) -> list[Origin] | None:
    """Return the parts of a number that is computed from a length."""
    node = origin.node
    if isinstance(node, ast.BinOp):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, ast.Call):
        return [origin.to(part) for part in node.args] if last_name(node) in ("float", "int", "max", "min") else []
    return None if isinstance(node, (ast.Name, ast.IfExp, ast.NamedExpr)) else []


def _of_split(node: ast.Call, is_torch: bool) -> Entries:
    """Return what the parts of a tensor are: its rows, of x.unbind(), else as many as are asked for."""
    rest = node.args[is_torch:]
    dims = [k.value for k in node.keywords if k.arg == "dim"] + rest[:1]
    is_first = not dims or (isinstance(dims[0], ast.Constant) and dims[0].value == 0)
    return _one(SAMPLES if last_name(node) == "unbind" and is_first else LAYERS)


def _moves_samples(node: ast.Call, name: str, first: object) -> bool:
    """Return whether the samples are not in the first axis of what this gives, as far as its arguments say so."""
    if name in ("permute", "movedim"):
        return first != 0
    return any(isinstance(part, ast.Constant) and part.value == 0 for part in node.args)

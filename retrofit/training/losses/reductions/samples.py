"""Loops over the samples of a batch, and divisors that are the number of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, LocalClass, Result, Value
from retrofit.training.data.batch_values import BATCH, GRADIENT, BatchValues
from retrofit.training.data.drawn import is_loader
from retrofit.training.torch_api.data import DATA_PACKAGES
from retrofit.training.torch_api.tensors import COUNT_METHODS, JOINS, SUMS_OF_SEVERAL

from ..divisions import SIZE, Reader
from .kinds import Leaf
from .lists import DRAWN, LAYERS, SAMPLES, UNKNOWN, Lists

if TYPE_CHECKING:
    from retrofit.training import Project

NAMES = re.compile(r"batch|^bsz?$|_bsz?$", re.IGNORECASE)
OTHERS = re.compile(r"batches|accum|per_batch|(n|num|nb)_?batch$|norm", re.IGNORECASE)  # numbers of batches
ADDING = JOINS | SUMS_OF_SEVERAL | {"add", "sub", "reduce"}
LOADERS = re.compile(r"load|data|self$", re.IGNORECASE)


class SampleLoops:
    """Answers whether a place is run once for each sample of a batch."""

    def __init__(self, project: Project) -> None:
        self._analysis, self._values = project.analysis, project.batch_values
        self.lists = Lists(project.analysis, project.batch_values, self.is_within, self.goes_through)
        self._reader = Reader(project.analysis, project.batch_values, project.distribution)

    def is_within(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node is in a loop over the samples, in its own function."""
        return any(self.goes_through(loop.iter, scope) for loop in self._loops_around(node, scope))

    def may_be_within(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node can be run for one sample after the other, by its own loops or those around calls."""
        return any(
            self._entries(iterable, where) != LAYERS
            for place, where in call_chains(self._analysis, node, scope)
            for outer in where.source.ancestors(place)
            for iterable in _gone_through(outer)
            if outer not in self._values.steps and where.node in where.source.ancestors(outer)
        )

    def goes_through(self, iterable: ast.expr, scope: Scope) -> bool:
        """Return whether this has an entry for each sample: range(len(images)), labels, zip(images, labels)."""
        return self._entries(iterable, scope) == SAMPLES

    def unclear_around(self, node: ast.AST, scope: Scope) -> frozenset[Leaf]:
        """Return what is gone through around a node, in its own function, of which it is not known what it has."""
        loops = self._loops_around(node, scope)
        return frozenset().union(*(self.unclear(loop.iter, scope) for loop in loops))

    def unclear(self, iterable: ast.expr, scope: Scope) -> frozenset[Leaf]:
        """Return an iterable of a batch whose entries are its samples or those of a list, where that is not known."""
        return frozenset([(iterable, scope)] if self._entries(iterable, scope) == UNKNOWN else [])

    def _loops_around(self, node: ast.AST, scope: Scope) -> Iterator[ast.For]:
        for outer in scope.source.ancestors(node):
            if outer is scope.node or outer in self._values.steps:
                return
            if isinstance(outer, ast.For):
                yield outer

    def _entries(self, iterable: ast.expr, scope: Scope) -> str:
        """Return SAMPLES, LAYERS for anything else, UNKNOWN for what can be either."""
        if isinstance(iterable, ast.Call):
            name, args = last_name(iterable), iterable.args
            if name == "range" and args:
                return self._of_numbers(args[min(1, len(args) - 1)], iterable, scope)
            if name in ("enumerate", "tqdm", "reversed") and args:
                return self._entries(args[0], scope)
            if name == "zip" and args:
                return self._verdict(args, self._of_all(args, scope), scope)
            if name in ("keys", "values", "items"):
                return LAYERS
        if _gives_own_keys(iterable, scope):
            return LAYERS  # names of losses: losses[name] for name in losses
        parts = [iterable, *_indexed_by(iterable, scope)]
        return self._verdict(parts, self._of_all(parts, scope), scope)

    def _of_numbers(self, last: ast.expr, iterable: ast.expr, scope: Scope) -> str:
        """Return what a loop over the numbers up to `last` goes through."""
        is_size = self._reader.kind_of(last, scope) == SIZE
        if not is_size and not looks_like_size(self._values, last, scope):
            return LAYERS
        counted = self.lists.counted_by(last, scope)
        if not counted or counted == {SAMPLES}:
            return SAMPLES  # x.size(0)
        indexed = _indexed_by(iterable, scope)
        return self._verdict([last, *indexed], counted | self._of_all(indexed, scope), scope)

    def _of_all(self, parts: Iterable[ast.expr], scope: Scope) -> frozenset[str]:
        return frozenset().union(*(self.lists.entries(part, scope) for part in parts))

    def _verdict(self, parts: list[ast.expr], found: frozenset[str], scope: Scope) -> str:
        """Return what a loop over several lists of the same length goes through, by what is known of each."""
        if not any(BATCH in self._values.sources_of(part, scope) for part in parts):
            return LAYERS
        known = found & {LAYERS, SAMPLES}
        if len(known) == 1:
            return next(iter(known))
        if found != {DRAWN} and self._are_compared_with_batch(parts[0], scope):
            return LAYERS
        return SAMPLES if found == {DRAWN} else UNKNOWN

    def _are_compared_with_batch(self, iterable: ast.expr, scope: Scope) -> bool:
        """Return whether a loss compares each entry with all samples of the batch: criterion(out, target) for each out.

        One sample would be compared with its own target: targets[i], or what is drawn next to it.
        """
        loop = _loop_of(iterable, scope)
        if loop is None or not isinstance(iterable, (ast.Name, ast.Attribute)) or not isinstance(loop.target, ast.Name):
            return False
        whole = loop if isinstance(loop, ast.For) else scope.source.parents[loop]
        own = {loop.target.id, *stored_names([whole])} if isinstance(loop, ast.For) else {loop.target.id}
        for call in (part for part in walk(whole) if isinstance(part, ast.Call)):
            given = [part for part in call.args if isinstance(part, (ast.Name, ast.Attribute))]
            if not any(isinstance(part, ast.Name) and part.id == loop.target.id for part in given[:1]):
                continue
            others = (part for part in given[1:] if loaded_names([part]).isdisjoint(own))
            if any(self._is_of_batch_alone(part, scope) for part in others):
                return True
        return False

    def _is_of_batch_alone(self, node: ast.expr, scope: Scope) -> bool:
        found = self._values.sources_of(node, scope)
        return BATCH in found and GRADIENT not in found


def _gone_through(loop: ast.AST) -> list[ast.expr]:
    if isinstance(loop, ast.For):
        return [loop.iter]
    return [part.iter for part in loop.generators] if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else []


def _gives_own_keys(iterable: ast.expr, scope: Scope) -> bool:
    """Return whether what a loop goes through is a dict, as each entry is a key of it."""
    loop = _loop_of(iterable, scope)
    if loop is None or not isinstance(iterable, (ast.Name, ast.Attribute)):
        return False
    text = ast.unparse(iterable)
    return any(ast.unparse(part) == text for part in _looked_up(loop, loop.target, scope))


def _indexed_by(iterable: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return what the numbers of a loop are indices in: `labels` of labels[i]."""
    loop = _loop_of(iterable, scope)
    if loop is None:
        return []
    is_counted = last_name(iterable) == "range"
    return _looked_up(loop, loop.target if is_counted else _first_of_pair(loop.target), scope)


def _loop_of(iterable: ast.expr, scope: Scope) -> ast.For | ast.comprehension | None:
    node: ast.AST = iterable
    while not isinstance(node, (ast.For, ast.comprehension, ast.stmt)):
        node = scope.source.parents[node]
    return node if isinstance(node, (ast.For, ast.comprehension)) else None


def _looked_up(loop: ast.For | ast.comprehension, target: ast.expr | None, scope: Scope) -> list[ast.expr]:
    """Return what a variable of a loop is an index or a key in."""
    whole = loop if isinstance(loop, ast.For) else scope.source.parents[loop]
    if not isinstance(target, ast.Name):
        return []
    return [
        part.value
        for part in walk(whole)
        if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Name) and part.slice.id == target.id
        if isinstance(part.ctx, ast.Load)
    ]


def _first_of_pair(target: ast.expr) -> ast.expr | None:
    """Return `i` of for i, part in enumerate(parts)."""
    return target.elts[0] if isinstance(target, ast.Tuple) and len(target.elts) == 2 else None


def is_added_to(name: str, node: ast.expr) -> bool:
    """Return whether an expression adds something to a variable: loss + term, sum([loss, term]), not loss / n."""
    pending: list[tuple[ast.AST, bool]] = [(node, False)]
    while pending:
        part, is_inside = pending.pop()
        if is_inside and isinstance(part, ast.Name) and part.id == name:
            return True
        is_sum = isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub))
        is_inside = is_inside or is_sum or (isinstance(part, ast.Call) and last_name(part) in ADDING)
        pending += [(inner, is_inside) for inner in children(part)]
    return False


def looks_like_size(values: BatchValues, node: ast.expr, scope: Scope) -> bool:
    """Return whether a divisor is the number of samples by how it is written: x.size(0), batch_size."""
    return any(_is_size(values, origin) for origin in origins(values.analysis, [Origin(node, scope)], _factors))


def counted_in(analysis: Analysis, node: ast.expr, scope: Scope) -> Iterator[Origin]:
    """Yield the tensors whose numbers of elements a divisor is made of: x of float(x.numel())."""
    for origin in origins(analysis, [Origin(node, scope)], _factors):
        if last_name(origin.node) in COUNT_METHODS and isinstance(origin.node, ast.Call):
            yield from (origin.to(part, keys=()) for part in _receiver(analysis, origin.node, origin.scope))


def _receiver(analysis: Analysis, call: ast.Call, scope: Scope) -> list[ast.expr]:
    """Return what a method of tensors, or the function of torch, is applied to."""
    is_method = isinstance(call.func, ast.Attribute) and "torch" not in analysis.named(call.func.value, scope)
    return [call.func.value] if is_method else call.args[:1]  # type: ignore[attr-defined]


def is_name_of_size(name: str) -> bool:
    return bool(NAMES.search(name)) and not OTHERS.search(name)


def _is_size(values: BatchValues, origin: Origin) -> bool:
    node, scope, keys = origin
    if _is_before_batches(values, node, scope):
        return not keys and isinstance(node, (ast.Name, ast.Attribute)) and is_name_of_size(last_name(node))
    if keys:
        return keys == (0,) and last_name(node) in ("shape", "size")  # of n, c, h, w = x.shape too
    if isinstance(node, (ast.Name, ast.Attribute)):
        return is_name_of_size(last_name(node))
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if last_name(node) == "size":
        return isinstance(first, ast.Constant) and first.value == 0
    if last_name(node) != "len" or first is None or LOADERS.search(ast.unparse(first)):
        return False
    return not (_is_drawn_from(values, first, scope) or _holds_no_batch(values.analysis, first, scope))


def _is_before_batches(values: BatchValues, node: ast.AST, scope: Scope) -> bool:
    """Return whether an expression is evaluated once, before the loops over batches that are in its function."""
    loops = [loop for loop in own_nodes(scope.node) if loop in values.loops]
    lines = [loop.lineno for loop in loops]  # type: ignore[attr-defined]
    return bool(loops) and isinstance(node, ast.expr) and node.lineno < min(lines)


def _is_drawn_from(values: BatchValues, node: ast.expr, scope: Scope) -> bool:
    """Return whether a loop over the batches, around a node in its function, goes through it: it has batches."""
    text = ast.unparse(node)
    loops = (outer for outer in scope.source.ancestors(node) if outer in values.loops and isinstance(outer, ast.For))
    return any(isinstance(part, ast.expr) and ast.unparse(part) == text for loop in loops for part in walk(loop.iter))


def _holds_no_batch(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether all that an expression can be is known, and nothing of a batch: a loader, samples, a list."""
    known = analysis.evaluate(node, scope)
    return bool(known) and all(_counts_otherwise(analysis, value) for value in known)


def _counts_otherwise(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Display):
        return isinstance(value.node, (ast.List, ast.Tuple, ast.Set, ast.Dict))
    is_data = isinstance(value, Result) and value.builder.startswith(DATA_PACKAGES)
    return is_data or isinstance(value, (Instance, LocalClass)) or is_loader(analysis, value)


def _factors(origin: Origin) -> list[Origin] | None:
    """Return what a number is a product of, or is converted from; None for a name, whose values count."""
    node = origin.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, ast.Call) and last_name(node) in ("float", "int", "max"):
        return [origin.to(part) for part in node.args[:1]]
    is_shape = isinstance(node, ast.Subscript) and last_name(node.value) in ("shape", "size")
    return None if is_shape or (isinstance(node, ast.Name) and not origin.keys) else []

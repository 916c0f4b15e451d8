"""Loops over the samples of a batch, and divisors that are the number of them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.data.batch_values import BATCH, GRADIENT

from ..divisions import SIZE, Reader
from .lists import Lists

if TYPE_CHECKING:
    from retrofit.training import Project

NAMES = re.compile(r"batch|^bsz?$|_bsz?$", re.IGNORECASE)
OTHERS = re.compile(r"batches|accum|per_batch|(n|num|nb)_?batch$|norm", re.IGNORECASE)  # numbers of batches
LOADERS = re.compile(r"load|data|self$", re.IGNORECASE)


class SampleLoops:
    """Answers whether a place is run once for each sample of a batch."""

    def __init__(self, project: Project) -> None:
        self._analysis, self._values = project.analysis, project.batch_values
        self.lists = Lists(project.analysis, self.is_within)
        self._reader = Reader(project.analysis, project.batch_values, project.distribution)

    def is_within(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node is in a loop over the samples, in its own function."""
        for outer in scope.source.ancestors(node):
            if outer is scope.node or outer in self._values.loops:
                return False
            if isinstance(outer, ast.For) and self.goes_through(outer.iter, scope):
                return True
        return False

    def goes_through(self, iterable: ast.expr, scope: Scope) -> bool:
        """Return whether this has an entry for each sample: range(len(images)), labels, zip(images, labels)."""
        if isinstance(iterable, ast.Call):
            name, args = last_name(iterable), iterable.args
            if name == "range" and args:
                last = args[min(1, len(args) - 1)]
                if self.lists.is_fixed(last, scope):
                    return False
                return self._reader.kind_of(last, scope) == SIZE or looks_like_size(self._analysis, last, scope)
            if name in ("enumerate", "tqdm", "reversed") and args:
                return self.goes_through(args[0], scope)
            if name in ("zip", "keys", "values", "items"):
                return name == "zip" and all(self._is_of_batch(part, scope) for part in args)
        return self._is_of_batch(iterable, scope)

    def _is_of_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether this is a tensor of the batch itself: not what a model, or a dict, holds."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        sources = self._values.sources_of(node, scope)
        return BATCH in sources and GRADIENT not in sources


def looks_like_size(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a divisor is the number of samples by how it is written: x.size(0), batch_size."""
    return any(_is_size(origin) for origin in origins(analysis, [Origin(node, scope)], _factors))


def _is_size(origin: Origin) -> bool:
    node, _, keys = origin
    if keys:
        return keys == (0,) and last_name(node) in ("shape", "size")  # of n, c, h, w = x.shape too
    if isinstance(node, (ast.Name, ast.Attribute)):
        return bool(NAMES.search(last_name(node))) and not OTHERS.search(last_name(node))
    first = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if last_name(node) == "size":
        return isinstance(first, ast.Constant) and first.value == 0
    return last_name(node) == "len" and first is not None and not LOADERS.search(ast.unparse(first))


def _factors(origin: Origin) -> list[Origin] | None:
    """Return what a number is a product of, or is converted from; None for a name, whose values count."""
    node = origin.node
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, ast.Call) and last_name(node) in ("float", "int", "max"):
        return [origin.to(part) for part in node.args[:1]]
    is_shape = isinstance(node, ast.Subscript) and last_name(node.value) in ("shape", "size")
    return None if is_shape or (isinstance(node, ast.Name) and not origin.keys) else []

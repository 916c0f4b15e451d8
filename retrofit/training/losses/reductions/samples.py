"""Loops over the samples of a batch, and divisors that are the number of them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.scopes import Scope
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
        self._values = project.batch_values
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
                return self._reader.kind_of(last, scope) == SIZE or looks_like_size(last, scope)
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


def looks_like_size(node: ast.expr, scope: Scope) -> bool:
    """Return whether a divisor is the number of samples by how it is written: x.size(0), batch_size."""
    if isinstance(node, ast.Name):
        owner, bindings = scope.find(node.id) or (scope, [])
        for binding in bindings:
            value = binding.value
            if value is None or isinstance(value, ast.Name) or binding.kind != "value":
                continue
            if binding.path[:1] == (0,) and last_name(value) in ("shape", "size"):  # n, c, h, w = x.shape
                return True
            if not binding.path and looks_like_size(value, owner):
                return True
    if isinstance(node, (ast.Name, ast.Attribute)):
        return bool(NAMES.search(last_name(node))) and not OTHERS.search(last_name(node))
    if isinstance(node, ast.BinOp):
        is_product = isinstance(node.op, ast.Mult)
        return is_product and any(looks_like_size(part, scope) for part in (node.left, node.right))
    if isinstance(node, ast.Subscript):
        is_first = isinstance(node.slice, ast.Constant) and node.slice.value == 0
        return is_first and last_name(node.value) in ("shape", "size")
    if not isinstance(node, ast.Call):
        return False
    name, first = last_name(node), node.args[0] if node.args else None
    if name == "size":
        return isinstance(first, ast.Constant) and first.value == 0
    if name == "len" and first is not None:
        return not LOADERS.search(ast.unparse(first))
    return name in ("float", "int", "max") and first is not None and looks_like_size(first, scope)

"""What of a batch of the training an expression is computed from: its samples and targets, and what a model makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .analysis import Analysis
from .calls import argument_for, is_method
from .loaders import TRAIN, Loader
from .models import Model
from .optimizers import is_module
from .scopes import FUNCTIONS, Binding, Scope, parameters
from .values import Result

BATCH = "batch"
GRADIENT = "gradient"  # what a model makes of a batch
CHOSEN = "chosen"  # elements of a batch that a test on it chooses
COMPARED = "compared"
COMPARING = {"eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_or", "logical_not", "isin"}
CHOOSING = {"nonzero", "masked_select", "argwhere", "unique"}
WITHOUT_GRADIENT = COMPARING | {
    "detach", "item", "argmax", "size", "numel", "nelement", "dim", "long", "bool", "int", "tolist", "numpy", "nonzero",
    "new_zeros", "new_ones", "new_full",
}  # fmt: skip
PLAIN = {"data", "shape", "dtype", "device", "ndim"}
MOST_STEPS = 300


class BatchValues:
    """Answers what an expression has of a batch."""

    def __init__(self, analysis: Analysis, loaders: list[Loader], models: list[Model]) -> None:
        self.analysis = analysis
        self.loops = {use.loop for loader in loaders for use in loader.uses if use.role == TRAIN}
        self.calls = {call.call for model in models for call in model.calls}
        self._known: dict[tuple[ast.AST, Scope], frozenset[str]] = {}

    def sources_of(self, node: ast.expr, scope: Scope) -> frozenset[str]:
        """Return which of BATCH, GRADIENT, CHOSEN and COMPARED an expression is computed from."""
        if (node, scope) not in self._known:
            search = _Search(self)
            search.visit(node, scope, True)
            self._known[node, scope] = frozenset(search.found)
        return self._known[node, scope]


class _Search:
    def __init__(self, values: BatchValues) -> None:
        self.values = values
        self.analysis = values.analysis
        self.found: set[str] = set()
        self.seen: set[tuple[ast.AST, Scope, bool]] = set()

    def visit(self, node: ast.expr, scope: Scope, learns: bool) -> None:
        """Follow an expression; `learns`: its gradient counts."""
        if (node, scope, learns) in self.seen or len(self.seen) > MOST_STEPS:
            return
        self.seen.add((node, scope, learns))
        if isinstance(node, ast.Call):
            self._visit_call(node, scope, learns)
        elif isinstance(node, ast.Name):
            self._visit_name(node, scope, learns)
        elif isinstance(node, ast.Attribute):
            self._visit_attribute(node, scope, learns)
        else:
            if isinstance(node, ast.Compare):
                self.found.add(COMPARED)
            if isinstance(node, ast.Subscript) and COMPARED in self.values.sources_of(node.slice, scope):
                self.found.add(CHOSEN)
            for part in _parts(node):
                self.visit(part, scope, learns and not isinstance(node, ast.Compare))

    def _visit_call(self, node: ast.Call, scope: Scope, learns: bool) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "next" and isinstance(node.func, ast.Name):
            self.found.add(BATCH)
            return
        if learns and (node in self.values.calls or self._runs_module(node, scope)):
            self.found.add(GRADIENT)
        self.found |= {COMPARED} if name in COMPARING else {CHOSEN} if name in CHOOSING else set()
        inner = learns and name not in WITHOUT_GRADIENT
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for part in (*receiver, *node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(part, scope, inner)

    def _runs_module(self, node: ast.Call, scope: Scope) -> bool:
        values = self.analysis.evaluate(node.func, scope)
        return any(
            is_module(self.analysis, value) or (isinstance(value, Result) and value.maker.startswith("torch.nn."))
            for value in values
        )

    def _visit_name(self, node: ast.Name, scope: Scope, learns: bool) -> None:
        owner, bindings = scope.find(node.id) or (scope, [])
        for binding in bindings:
            if binding.kind == "item" and binding.node in self.values.loops:
                self.found |= set() if _is_number(binding) else {BATCH}
            elif isinstance(binding.node, ast.AugAssign):
                self.visit(binding.node.value, owner, learns)
            elif binding.kind == "parameter" and isinstance(owner.node, FUNCTIONS):
                names = parameters(owner.node)[1:] if is_method(owner) else parameters(owner.node)
                for site in self.analysis.callers(owner.node):
                    given = argument_for(site.call, names, binding.name)
                    if given is not None:
                        self.visit(given, site.scope, learns)
            elif binding.value is not None:
                self.visit(binding.value, owner, learns)

    def _visit_attribute(self, node: ast.Attribute, scope: Scope, learns: bool) -> None:
        owner = scope.enclosing_class()
        if owner is not None and isinstance(node.value, ast.Name) and node.value.id == "self":
            for binding, where in self.analysis.classes.attribute_bindings(owner, node.attr):
                if binding.value is not None:
                    self.visit(binding.value, where, learns)
        else:
            self.visit(node.value, scope, learns and node.attr not in PLAIN)


def _is_number(binding: Binding) -> bool:
    """Return whether this counts batches: `i` of for i, batch in enumerate(loader)."""
    is_enumerated = isinstance(binding.value, ast.Call) and getattr(binding.value.func, "id", "") == "enumerate"
    return is_enumerated and binding.path == (0,)


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr):
            yield part
        elif isinstance(part, (ast.comprehension, ast.Slice)):
            yield from _parts(part)

"""Layers with parameters that a class of models makes and that nothing uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from .analysis import Analysis
from .optimizers import is_module
from .scopes import Scope, own_nodes
from .values import Result, Value

WITH_PARAMETERS = (
    "Linear", "Bilinear", "Conv", "LSTM", "GRU", "RNN", "Embedding", "BatchNorm", "LayerNorm", "GroupNorm",
    "MultiheadAttention", "Transformer", "PReLU",
)  # fmt: skip
# Ways to reach an attribute without its name.
BY_ANOTHER_WAY = {
    "children",
    "named_children",
    "_modules",
    "__dict__",
    "get_submodule",
    "__getattr__",
    "__getattribute__",
}
ITERATING = {"modules", "named_modules", "parameters", "named_parameters"}


class UnusedLayers:
    """Answers for the classes of one project; what concerns all its files is looked up once."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis

    def of(self, class_scope: Scope) -> Iterator[ast.expr]:
        """Yield the expressions that make layers which no code reads, but for setting their first weights.

        Nothing where layers can be reached without their names, or where other classes are derived from this one.
        """
        analysis = self.analysis
        if self._reaches_unnamed or analysis.classes.derived(class_scope) or self._is_open(class_scope):
            return
        for owner in analysis.classes.mro(class_scope):
            for name, placed in analysis.classes.attributes_of(owner).items():
                values = [(binding.value, scope) for binding, scope in placed if binding.kind == "value"]
                if name in self._names_read or len(values) != 1 or placed[0][0].path:
                    continue
                value, scope = values[0]
                is_init = getattr(scope.node, "name", "") == "__init__"
                if is_init and any(_has_parameters(analysis, v) for v in analysis.evaluate(value, scope)):
                    assert value is not None
                    yield value

    def _is_open(self, class_scope: Scope) -> bool:
        """Return whether forward may use layers without their names, or the bases of a class cannot be seen."""
        classes = self.analysis.classes
        if not classes.bases(class_scope) <= {"torch.nn.Module", "torch.nn.modules.Module", "object"}:
            return True
        methods = [method for owner in classes.mro(class_scope) for method in owner.children]
        forwards = [method for method in methods if getattr(method.node, "name", "") == "forward"]
        return any(_iterates(node) for method in forwards for node in own_nodes(method.node))

    @cached_property
    def _reaches_unnamed(self) -> bool:
        return any(_reaches_unnamed(node) for node in self._nodes())

    @cached_property
    def _names_read(self) -> set[str]:
        """The names of attributes that are read anywhere, and the texts that may be such names.

        `nn.init.zeros_(self.name.weight)` alone, which sets weights, is no reading.
        """
        found: set[str] = set()
        for source in self.analysis.modules.sources.values():
            for node in ast.walk(source.tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.update(node.value.split("."))
                elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    statement = source.statement(node)
                    if not (isinstance(statement, ast.Expr) and _sets_weights(statement.value)):
                        found.add(node.attr)
        return found

    def _nodes(self) -> Iterator[ast.AST]:
        return (node for source in self.analysis.modules.sources.values() for node in ast.walk(source.tree))


def _reaches_unnamed(node: ast.AST) -> bool:
    """Return whether this may reach any attribute: `model.children()`, `getattr(self, name)`."""
    if isinstance(node, ast.Attribute):
        return node.attr in BY_ANOTHER_WAY
    if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("getattr", "eval"):
        return False
    return len(node.args) < 2 or not isinstance(node.args[1], ast.Constant)


def _iterates(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr in ITERATING


def _sets_weights(node: ast.expr) -> bool:
    """Return whether this is a call like `init.xavier_uniform_(layer.weight)` or `layer.bias.data.zero_()`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")


def _has_parameters(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Result):
        module, _, name = value.maker.rpartition(".")
        return module.startswith("torch.nn") and name.startswith(WITH_PARAMETERS)
    if not is_module(analysis, value):
        return False
    owners = analysis.classes.mro(value.scope)  # type: ignore[union-attr]
    placed = [pair for owner in owners for pairs in analysis.classes.attributes_of(owner).values() for pair in pairs]
    return any(
        isinstance(part, Result) and _has_parameters(analysis, part)
        for binding, scope in placed
        for part in analysis.evaluate(binding.value, scope)
    )

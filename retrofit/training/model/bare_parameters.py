"""Tensors that an optimizer gets by themselves, next to the parameters of models: `[*model.parameters(), scale]`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result, Value
from retrofit.training.model.modules import is_module
from retrofit.training.torch_api.tensors import CONVERTS, DRAWN, DRAWN_LIKE, FILLED, FILLED_LIKE, TENSOR_CLASSES

from ..optimizer.optimizers import Optimizer

TENSORS = TENSOR_CLASSES | FILLED | FILLED_LIKE | DRAWN | DRAWN_LIKE | CONVERTS | {"Parameter"}
JOINING = {"list", "tuple", "itertools.chain", "filter", "iter"}
MOST_STEPS = 100


def bare_parameters(analysis: Analysis, optimizers: list[Optimizer]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the expressions of tensors that belong to no model, where they are put among an optimizer's parameters."""
    search = _Search(analysis)
    for optimizer in optimizers:
        if optimizer.parameters is not None:
            yield from search.tensors(optimizer.parameters, optimizer.scope)
    for node, scope in reached_nodes(analysis):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_param_group":
            group = argument_for(node, ["param_group"], "param_group")
            yield from search.tensors(group, scope) if group is not None else ()


class _Search:
    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.seen: set[tuple[ast.AST, Scope]] = set()

    def tensors(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        if (node, scope) in self.seen or len(self.seen) > MOST_STEPS:
            return
        self.seen.add((node, scope))
        for part in self._parts(node, scope):
            yield from self.tensors(part, scope)
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            return
        values = self.analysis.evaluate(node, scope)
        if any(_is_tensor(value) for value in values):
            if not self._is_of_module(node, scope):
                yield node, scope
            return
        for value in values:
            if isinstance(value, Display):
                yield from self.tensors(value.node, value.scope)
        for part, where in self._added(node, scope):
            yield from self.tensors(part, where)

    def _parts(self, node: ast.expr, scope: Scope) -> list[ast.expr]:
        """Return the expressions that a list, a group or a sum of lists is put together from."""
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return node.elts
        if isinstance(node, ast.Starred):
            return [node.value]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [node.left, node.right]
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values)
            return [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "params"]
        if isinstance(node, ast.Call) and self.analysis.called(node, scope) & {"dict"}:
            return [keyword.value for keyword in node.keywords if keyword.arg == "params"]
        return node.args if isinstance(node, ast.Call) and self.analysis.called(node, scope) & JOINING else []

    def _added(self, node: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield what is added to a list in a variable: `params += [scale]`, `params.append(scale)`."""
        found = scope.find(node.id) if isinstance(node, ast.Name) else None
        owner = found[0] if found is not None else scope
        text = ast.unparse(node)
        for part in own_nodes(owner.node):
            if isinstance(part, ast.AugAssign) and ast.unparse(part.target) == text:
                yield part.value, owner
            elif _grows(part, text):
                yield part.args[-1], owner  # type: ignore[attr-defined]

    def _is_of_module(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a tensor is an attribute of a module, whose wrapper averages its gradient."""
        if not isinstance(node, ast.Attribute):
            return False
        return any(is_module(self.analysis, value) for value in self.analysis.evaluate(node.value, scope))


def _grows(node: ast.AST, text: str) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return False
    return node.func.attr in GROWS_LIST and ast.unparse(node.func.value) == text


def _is_tensor(value: Value) -> bool:
    if not isinstance(value, Result) or value.receiver is not None:
        return False
    package, _, name = value.builder.rpartition(".")
    return package.partition(".")[0] == "torch" and name in TENSORS

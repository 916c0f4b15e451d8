"""Which expressions are the rank: asked for, read from the environment, handed over, or called so."""

from __future__ import annotations

import ast

from ..analysis import Analysis
from ..calls import argument_for, is_method
from ..scopes import FUNCTIONS, Binding, Scope, parameters
from ..values import Display, Instance, Item, Result, Value, name_of

ASKING = {"torch.distributed.get_rank", "retrofit.distributed.get_rank", "retrofit.distributed.get_local_rank"}
VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK"}
COMPUTING = ("torch.", "numpy.", "scipy.", "sorted", "len", "range", "enumerate")  # what makes other ranks: of hits
MOST_DEPTH = 6


def is_rank(analysis: Analysis, node: ast.expr, scope: Scope, depth: int = MOST_DEPTH) -> bool:
    """Return whether an expression is the number of the process, or tells it as `rank % num_gpus` does."""
    if depth == 0:
        return False
    if isinstance(node, ast.BinOp):
        return any(is_rank(analysis, part, scope, depth - 1) for part in (node.left, node.right))
    if isinstance(node, ast.Call) and analysis.called(node, scope) & {"int", "str"} and node.args:
        return is_rank(analysis, node.args[0], scope, depth - 1)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return False
    if _is_variable(node) or is_given_by_start(analysis, node, scope):
        return True
    values = analysis.evaluate(node, scope)
    if any(_is_rank_value(analysis, value, node, depth) for value in values):
        return True
    if any(is_rank(analysis, given, where, depth - 1) for given, where in _given_for(analysis, node, scope)):
        return True
    if not _is_called_rank(last_name(node)) or any(_is_something_else(value, node) for value in values):
        return False
    kinds = {binding.kind for binding, _ in bindings_of(analysis, node, scope)}
    return kinds != {"item"}  # the variable of a loop


def _given_for(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the names that a parameter is given, or an attribute is set to: `rank` of `self.gpu = rank`."""
    found: list[tuple[ast.expr | None, Scope]] = []
    for binding, where in bindings_of(analysis, node, scope):
        if binding.kind == "parameter":
            found += arguments_for(analysis, binding.name, where)
        elif isinstance(node, ast.Attribute) and not binding.path:
            found.append((binding.value, where))
    return [(given, where) for given, where in found if isinstance(given, (ast.Name, ast.Attribute))]


def _is_rank_value(analysis: Analysis, value: Value, node: ast.expr, depth: int) -> bool:
    if name_of(value) in ASKING:
        return True
    made = getattr(value, "node", None) if isinstance(value, Display) else getattr(value, "call", None)
    is_other = isinstance(made, (ast.BinOp, ast.Call)) and made is not node
    return is_other and is_rank(analysis, made, value.scope, depth - 1)  # type: ignore[arg-type, union-attr]


def _is_something_else(value: Value, node: ast.expr) -> bool:
    """Return whether what is called a rank is known to be no process: the place of a hit, the counter of a loop."""
    is_made = isinstance(value, Result) and value.call is not node and value.maker.startswith(COMPUTING)
    return is_made or isinstance(value, Item)


def _is_variable(node: ast.expr) -> bool:
    """Return whether this reads os.environ["RANK"] or its like."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in VARIABLES
    if isinstance(node, ast.Call) and last_name(node) in ("get", "getenv") and node.args:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in VARIABLES
    return False


def _is_called_rank(name: str) -> bool:
    return name.lower().rpartition("_")[2] == "rank"


def is_given_by_start(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a name is the first parameter of a function that torch.multiprocessing.spawn starts."""
    if not isinstance(node, ast.Name) or not isinstance(scope.node, FUNCTIONS):
        return False
    return parameters(scope.node)[:1] == [node.id] and scope in analysis.spawned.functions


def bindings_of(analysis: Analysis, node: ast.expr, scope: Scope) -> list[tuple[Binding, Scope]]:
    """Return the bindings of a name, or of an attribute of the project's objects, with their scopes."""
    if isinstance(node, ast.Name):
        found = scope.find(node.id)
        return [(binding, found[0]) for binding in found[1]] if found else []
    if isinstance(node, ast.Attribute):
        owners = {value.scope for value in analysis.evaluate(node.value, scope) if isinstance(value, Instance)}
        return [pair for owner in owners for pair in analysis.classes.attribute_bindings(owner, node.attr)]
    return []


def arguments_for(analysis: Analysis, name: str, scope: Scope) -> list[tuple[ast.expr | None, Scope]]:
    """Return what every call gives for a parameter of the function that `scope` is of."""
    assert isinstance(scope.node, FUNCTIONS)
    names = parameters(scope.node)[1:] if is_method(scope) else parameters(scope.node)
    return [(argument_for(site.call, names, name), site.scope) for site in analysis.callers(scope.node)]


def last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

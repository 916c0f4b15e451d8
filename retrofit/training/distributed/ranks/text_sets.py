"""Sets of what may be texts, which each process goes through in another order, and where that changes nothing."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.keys import Key
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import Memory
from retrofit.analysis.python_api import SETS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result
from retrofit.training.torch_api.modules import CHILDREN, MODULES, PARAMETERS

SET_METHODS = frozenset({"union", "intersection", "difference", "symmetric_difference"})
NO_ORDER = SETS | {"len", "sum", "min", "max", "any", "all", "isinstance"}
NUMBERS = frozenset({"int", "range", "item", "float", "len", "ord", "bool", "arange", "randint", "randperm"})
# Functions of numpy that give entries of their argument; the others give numbers.
OF_ITS_ARGUMENT = frozenset({"choice", "permutation", "unique", "sort", "array", "asarray", "concatenate", "setdiff1d"})
PARTS_OF_MODELS = PARAMETERS | CHILDREN | MODULES | {"buffers", "named_buffers"}


def is_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a set, of what may be texts: their order follows the seed of a process."""
    known: Memory[bool] = analysis.fact("sets", lambda: Memory(False))  # words = words - {"the"}
    return known.once((node, scope), lambda: _is_set(analysis, node, scope))


def _is_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.BinOp):
        is_operator = isinstance(node.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor))
        sides = (node.left, node.right)
        is_any = is_operator and any(is_set(analysis, part, scope) for part in sides)
        are_others = (_has_numbers(analysis, part, scope) or _are_objects(analysis, part, scope) for part in sides)
        return is_any and not any(are_others)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SET_METHODS:
        return is_set(analysis, node.func.value, scope)
    values = analysis.evaluate(node, scope)
    return bool(values) and all(_is_of_texts(analysis, value) for value in values)


def _is_of_texts(analysis: Analysis, value: object) -> bool:
    if isinstance(value, Result):
        is_other = any(
            _has_numbers(analysis, part, value.scope) or _are_objects(analysis, part, value.scope)
            for part in value.call.args
        )
        return value.builder in SETS and not is_other
    if isinstance(value, Display) and isinstance(value.node, ast.BinOp):
        return is_set(analysis, value.node, value.scope)
    if not isinstance(value, Display) or not isinstance(value.node, (ast.Set, ast.SetComp)):
        return False
    parts = value.node.elts if isinstance(value.node, ast.Set) else [value.node.elt]
    return not all(_is_of_numbers(part) for part in parts) and not _are_objects(analysis, value.node, value.scope)


def _are_objects(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this holds parameters or layers, or their addresses: nothing can hand these to another process."""

    def through(origin: Origin) -> list[Origin] | None:
        call = origin.node
        is_filter = isinstance(call, ast.Call) and last_name(call) == "filter" and len(call.args) == 2
        return [origin.to(call.args[1])] if is_filter else None  # type: ignore[union-attr]

    return any(_is_part_of_model(o) for o in origins(analysis, [Origin(node, scope, (Key.ELEMENT,))], through))


def _is_part_of_model(origin: Origin) -> bool:
    call, name = origin.node, last_name(origin.node)
    if not isinstance(call, ast.Call):
        return False
    if name == "map":
        return bool(call.args) and last_name(call.args[0]) == "id"
    is_name = name.startswith("named_") and origin.keys[1:2] == (0,)
    return name == "id" or (isinstance(call.func, ast.Attribute) and name in PARTS_OF_MODELS and not is_name)


def _has_numbers(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether these are numbers, which every process puts in the same order."""
    known: Memory[bool] = analysis.fact("numbers", lambda: Memory(True))  # rest = list(set(rest) - chosen)
    return known.once((node, scope), lambda: _are_numbers(analysis, node, scope))


def _are_numbers(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if isinstance(node, ast.BinOp):
        return any(_has_numbers(analysis, part, scope) for part in (node.left, node.right))
    if isinstance(node, ast.Call):
        names = analysis.called(node, scope)
        if any(name.startswith("numpy.") for name in names):
            given = node.args[:1] if last_name(node) in OF_ITS_ARGUMENT else []
            return all(_has_numbers(analysis, part, scope) for part in given)
        if names & {"list", "tuple", "sorted", *SETS} and node.args:
            return _has_numbers(analysis, node.args[0], scope)
    if isinstance(node, ast.Name):
        values = analysis.evaluate(node, scope)
        made = [v.call if isinstance(v, Result) else getattr(v, "node", None) for v in values]
        places = [(m, getattr(v, "scope", scope)) for m, v in zip(made, values) if isinstance(m, ast.expr)]
        return bool(places) and len(places) == len(values) and all(_has_numbers(analysis, *place) for place in places)
    return _is_of_numbers(node)


def _is_of_numbers(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (int, float))
    if isinstance(node, (ast.List, ast.Tuple)):
        return all(_is_of_numbers(part) for part in node.elts)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        (first, *_) = node.generators
        is_counted = last_name(first.iter) == "range" and ast.unparse(first.target) == ast.unparse(node.elt)
        return is_counted or _is_of_numbers(node.elt)
    return isinstance(node, ast.Call) and last_name(node) in NUMBERS


def is_any_order(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether the order does not matter: `sorted(list(words))`, `{word.lower() for word in words}`."""
    if isinstance(node, ast.For):
        return all(_is_the_same(analysis, statement, scope) for statement in node.body)
    if isinstance(node, ast.Call) and _fills_set(analysis, node, scope):
        return True
    outer = scope.source.parents[node]
    if isinstance(node, ast.comprehension):
        if isinstance(outer, ast.SetComp):
            return True
        outer = scope.source.parents[outer]
    if not isinstance(outer, ast.Call):
        return False
    is_sorted = last_name(outer) == "sorted" and not keeps_ties(outer)
    return is_sorted or last_name(outer) in NO_ORDER or _fills_set(analysis, outer, scope)


def keeps_ties(call: ast.Call) -> bool:
    """Return whether what is sorted stays in its order where a key does not tell: sorted(words, key=len)."""
    return last_name(call) == "sorted" and any(keyword.arg == "key" for keyword in call.keywords)


def _is_the_same(analysis: Analysis, statement: ast.stmt, scope: Scope) -> bool:
    """Return whether a statement in a loop does the same in any order: it fills a set, counts, shows or asserts."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return last_name(statement.value) in ("print", "info") or _fills_set(analysis, statement.value, scope)
    if isinstance(statement, ast.AugAssign):
        return _is_of_numbers(statement.value) or _is_any_set(analysis, statement.target, scope)
    return isinstance(statement, (ast.Assert, ast.Raise, ast.Pass))


def _fills_set(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call puts something into a set, or takes it out: not `vocabulary.add(word)` of an own class."""
    is_change = isinstance(call.func, ast.Attribute) and call.func.attr in ("add", "discard", "update")
    return is_change and _is_any_set(analysis, call.func.value, scope)  # type: ignore[attr-defined]


def _is_any_set(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    values = analysis.evaluate(node, scope)
    return bool(values) and all(
        (isinstance(value, Result) and value.builder in SETS)
        or (isinstance(value, Display) and isinstance(value.node, (ast.Set, ast.SetComp)))
        for value in values
    )

"""Uses of a value: the expressions that have the value of an expression next, through a whole project.

Names lead to where they are read, arguments into the functions of the project, what these return to their calls. What
operators and functions of libraries make of it is the caller's own question.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Optional

from ..calls import argument_for, given_parameters
from ..scopes import Scope, own_nodes
from ..values.inference import Analysis
from .sources import closure
from .stored import Variable, own_variable

RETURNING = (ast.Return, ast.Yield, ast.YieldFrom, ast.Lambda)
HOLDING = (ast.IfExp, ast.BoolOp, ast.Await, ast.Starred, ast.Tuple, ast.List, ast.Set, ast.Dict)
Use = tuple[ast.expr, Scope]
Onward = Callable[[ast.expr, Scope], Optional[Iterable[Use]]]


def reached_by(analysis: Analysis, starts: Iterable[Use], onward: Onward = lambda node, scope: None) -> Iterator[Use]:
    """Yield expressions and all that have their values later, nearest first.

    `onward` says where to continue from an expression: to the sum that it is part of, say, or with () nowhere; with
    None to its `uses`.
    """

    def step(use: Use) -> Iterable[Use]:
        found = onward(*use)
        return uses(analysis, *use) if found is None else found

    return closure(starts, step)


def uses(analysis: Analysis, node: ast.expr, scope: Scope) -> Iterator[Use]:
    """Yield the expressions, one step later, that have the value of an expression, or hold it."""
    parent = scope.source.parents.get(node)
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        yield from (use for target in targets for use in reads_of(analysis, target, scope))
        yield from [(parent, scope)] if isinstance(parent, ast.NamedExpr) else []
    elif isinstance(parent, (ast.For, ast.AsyncFor, ast.comprehension)) and node is parent.iter:
        yield from reads_of(analysis, parent.target, scope)
    elif isinstance(parent, ast.withitem) and parent.optional_vars is not None:
        yield from reads_of(analysis, parent.optional_vars, scope)
    elif isinstance(parent, RETURNING):
        function = scope.node
        yield from ((site.call, site.scope) for site in analysis.callers(function))  # type: ignore[arg-type]
    elif isinstance(parent, (ast.Call, ast.keyword)):
        yield from _in_function(analysis, node, parent, scope)
    elif (
        isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load) and node is parent.value
    ) or isinstance(parent, HOLDING):
        yield parent, scope


def reads_of(analysis: Analysis, target: ast.expr, scope: Scope) -> Iterator[Use]:
    """Yield where the variables are read that an assignment's target names: those that it fills, too."""
    known: dict[Variable, list[Use]] = analysis.fact("reads", lambda: _all_reads(analysis))
    if isinstance(target, (ast.Tuple, ast.List)):
        yield from (use for part in target.elts for use in reads_of(analysis, part, scope))
    elif isinstance(target, (ast.Starred, ast.Subscript)):
        yield from reads_of(analysis, target.value, scope)
    else:
        variable = own_variable(target, scope)
        yield from known.get(variable, []) if variable is not None else []


def _in_function(analysis: Analysis, node: ast.expr, parent: ast.Call | ast.keyword, scope: Scope) -> Iterator[Use]:
    """Yield where an argument is read in the functions of the project that a call runs."""
    call = parent if isinstance(parent, ast.Call) else scope.source.parents[parent]
    assert isinstance(call, ast.Call)
    known: dict[Variable, list[Use]] = analysis.fact("reads", lambda: _all_reads(analysis))
    for function in analysis.functions_called(call, scope):
        names = given_parameters(function.scope)
        for name in names:
            if argument_for(call, names, name) is node:
                yield from known.get((function.scope, name), [])


def _all_reads(analysis: Analysis) -> dict[Variable, list[Use]]:
    found: dict[Variable, list[Use]] = defaultdict(list)
    for scope in analysis.scopes():
        for node in own_nodes(scope.node):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                variable = own_variable(node, scope)
                if variable is not None:
                    found[variable].append((node, scope))
    return dict(found)

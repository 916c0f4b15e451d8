"""Whether a piece of code computes gradients, or only looks: evaluation, teachers, moving averages."""

from __future__ import annotations

import ast

from .analysis import Analysis
from .scopes import FUNCTIONS, Scope

SWITCHED_OFF = {"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode"}
MOST_DEPTH = 4


def has_gradients(analysis: Analysis, scope: Scope, node: ast.AST, depth: int = MOST_DEPTH) -> bool:
    """Return whether a node can run with gradients: neither it nor every call of its function is under no_grad."""
    if is_switched_off(analysis, scope, node):
        return False
    sites = analysis.callers(scope.node) if isinstance(scope.node, FUNCTIONS) and depth else []
    return not sites or any(has_gradients(analysis, site.scope, site.call, depth - 1) for site in sites)


def is_switched_off(analysis: Analysis, scope: Scope, node: ast.AST) -> bool:
    """Return whether a node stands in `with torch.no_grad():` or in a function that is decorated so."""
    for outer in scope.source.ancestors(node):
        contexts: list[ast.expr] = []
        where = scope
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            contexts = [item.context_expr for item in outer.items]
        elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            contexts, where = outer.decorator_list, analysis.scope_of_node[outer].parent or scope
        if any(_switches_off(analysis, context, where) for context in contexts):
            return True
        if outer is scope.node:
            return False
    return False


def _switches_off(analysis: Analysis, context: ast.expr, scope: Scope) -> bool:
    """Return whether this is `torch.no_grad()`, `torch.no_grad` or `torch.set_grad_enabled(False)`."""
    if isinstance(context, ast.Call):
        names = analysis.called(context, scope)
        is_false = [isinstance(given, ast.Constant) and given.value is False for given in context.args]
        return bool(names & SWITCHED_OFF) or ("torch.set_grad_enabled" in names and is_false == [True])
    return bool(analysis.named(context, scope) & SWITCHED_OFF)

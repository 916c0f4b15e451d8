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
        for context in contexts:
            made = context.func if isinstance(context, ast.Call) else context
            if analysis.named(made, where) & SWITCHED_OFF:
                return True
        if outer is scope.node:
            return False
    return False

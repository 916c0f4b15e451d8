"""The loader that a loop draws from, seen through progress bars, enumerate and names for these."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.name_uses import stored_names
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.data import ENDLESS, ITERABLE_PARAMETERS, ITERATORS, NUMBERS, SAME_ELEMENTS


def handed_on(analysis: Analysis, node: ast.expr, scope: Scope) -> ast.expr | None:
    """Return what a call takes one by one and hands on, None for any other expression."""
    if not isinstance(node, ast.Call) or not analysis.called(node, scope) & SAME_ELEMENTS:
        return None
    given = (argument_for(node, [name], name) for name in ITERABLE_PARAMETERS)
    return next((part for part in given if part is not None), None)


def made_before(analysis: Analysis, node: ast.expr, scope: Scope) -> ast.Call | None:
    """Return the call that a name is bound to in its function: `bar = tqdm(loader)`, `with tqdm(loader) as bar`."""
    if not isinstance(node, ast.Name):
        return None
    made = [binding for binding in scope.bindings.get(node.id, []) if binding.value is not None]
    only = made[0].value if len(made) == 1 else None
    if not isinstance(only, ast.Call) or made[0].kind not in ("value", "enter") or made[0].path:
        return None  # `batch` of `for step, batch in enumerate(loader)` is not what that hands on
    return only if handed_on(analysis, only, scope) is not None or repeats(analysis, only, scope) else None


def repeats(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call gives what it takes again and again: itertools.cycle(x), a generator with `while True`."""
    if analysis.called(call, scope) & ENDLESS:
        return True
    nodes = [node for function in analysis.functions_called(call, scope) for node in own_nodes(function.node)]
    loops = [node for node in nodes if isinstance(node, ast.While) and isinstance(node.test, ast.Constant)]
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for loop in loops for part in walk(loop))


def layers(analysis: Analysis, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return an expression, what it hands on, and so on: tqdm(enumerate(x)), enumerate(x), x."""
    found = [node]
    names: set[str] = set()
    while True:
        inner = handed_on(analysis, found[-1], scope)
        if inner is None and isinstance(found[-1], ast.Name) and found[-1].id not in names:
            names.add(found[-1].id)  # in `loader = tqdm(loader)` it refers to itself
            inner = made_before(analysis, found[-1], scope)
        if inner is None:
            return found
        found.append(inner)


def is_of_several(analysis: Analysis, binding: Binding, scope: Scope) -> bool:
    """Return whether a loop gives a name a batch of each of several loaders: `parts` of `for parts in zip(a, b)`."""
    if not isinstance(binding.node, (ast.For, ast.AsyncFor)):
        return False
    found = layers(analysis, binding.node.iter, scope)
    numbered = [part for part in found if isinstance(part, ast.Call) and "enumerate" in analysis.called(part, scope)]
    last = found[-1]
    made = [b.value for b in scope.bindings.get(last.id, [])] if isinstance(last, ast.Name) else [last]
    is_zip = all(isinstance(part, ast.Call) and "zip" in analysis.called(part, scope) for part in made)
    return bool(made) and is_zip and binding.path == (1,) * len(numbered)


def is_iterator(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a call makes something that is there to be iterated, unlike a list of batches."""
    return isinstance(node, ast.Call) and bool(analysis.called(node, scope) & ITERATORS)


def numbers_in(analysis: Analysis, loop: ast.For | ast.AsyncFor, scope: Scope) -> set[str]:
    """Return the names that a loop gives the number of the batch: `i` of `for i, batch in tqdm(enumerate(loader))`."""
    numbers: set[str] = set()
    waiting: list[tuple[ast.expr, ast.expr]] = [(loop.target, loop.iter)]
    while waiting:
        target, drawn = waiting.pop()
        for node in layers(analysis, drawn, scope):
            names = analysis.called(node, scope) if isinstance(node, ast.Call) else set()
            parts = target.elts if isinstance(target, ast.Tuple) else []
            if names & NUMBERS:
                numbers |= stored_names([target])
            elif "enumerate" in names:
                numbers |= stored_names(parts[:1] or [target])
                target = parts[1] if len(parts) == 2 else target
            elif "zip" in names:
                assert isinstance(node, ast.Call)
                waiting += zip(parts, node.args)
    return numbers

"""Objects, generators and iterators of libraries that give a training its batches, where there is no loader."""

from __future__ import annotations

import ast

from retrofit.analysis.files.standard_library import standard_modules
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Item, Result, Value
from retrofit.analysis.values.views import Place
from retrofit.training.torch_api.data import ENDLESS, LOOKS_LIKE_LOADER, NUMBERS, SAME_ELEMENTS
from retrofit.training.torch_api.tensors import READS

from ...loops import Path, reached_paths
from ...model.modules import is_module
from .sized_draws import is_order, shuffled
from .slices.cut_batches import gives_cut, steps_in_each

KNOWN = standard_modules() | {"torch", "numpy"}  # packages that do not iterate over batches
MOST_NAMES = 4  # of a view that is followed: bar = tqdm(batches)


def ready_batches(analysis: Analysis, path: Path) -> list[Place]:
    """Return what the innermost loop of a training goes through, or draws from by next(), that gives ready batches."""
    loop, frame = path.loops[0]
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        order = order_of_batches(analysis, path)
        if order is not None:
            return [order]
        place = _without_counter(analysis, *_inside(analysis, loop.iter, frame.scope))
        if gives_batches(analysis, *place) or (steps_in_each(path) and gives_cut(analysis, *place)):
            return [place]
    found = []
    for node in walk(loop):
        if isinstance(node, ast.Call) and node.args and "next" in analysis.called(node, frame.scope):
            place = _inside(analysis, node.args[0], frame.scope)
            if gives_batches(analysis, *place):
                found.append(place)
    return list(dict.fromkeys(found))


def order_of_batches(analysis: Analysis, path: Path) -> Place | None:
    """Return a random order of which each number chooses what a step takes, and is for nothing else: batches[i].

    No loop inside makes steps, too: it may choose its batches in another way.
    """
    loop, frame = path.loops[0]
    if any(loop in dict(other.loops[1:]) for other in reached_paths(analysis)):
        return None
    target = loop.target if isinstance(loop, ast.For) else None
    if isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]  # for n, i in enumerate(order)
    order = loop.iter if isinstance(loop, ast.For) else None
    while isinstance(order, ast.Call) and order.args and analysis.called(order, frame.scope) & SAME_ELEMENTS:
        order = order.args[0]
    if order is None or not isinstance(target, ast.Name) or not _is_random(analysis, order, frame.scope):
        return None
    parents = frame.scope.source.parents
    reads = [node for node in walk(loop) if isinstance(node, ast.Name) and node.id == target.id and node is not target]
    is_index = all(
        isinstance(outer, ast.Subscript) and outer.slice is node and isinstance(outer.ctx, ast.Load)
        for node, outer in ((node, parents[node]) for node in reads)
    )
    return (order, frame.scope) if reads and is_index else None


def _is_random(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a random order of numbers, made by a call or put into it in place."""
    found = shuffled(analysis, [(part, scope) for part in own_nodes(scope.node)])
    if any(call.args and ast.dump(call.args[0]) == ast.dump(node) for call, _ in found):
        return True
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in READS:
        node = node.func.value  # order.tolist()
    return any(is_order(analysis, origin.node, origin.scope) for origin in origins(analysis, [Origin(node, scope)]))


def _without_counter(analysis: Analysis, node: ast.expr, scope: Scope) -> Place:
    """Return what a loop goes through next to numbers that count its turns: zip(batches, range(len(batches)))."""
    if isinstance(node, ast.Call) and "zip" in analysis.called(node, scope):
        others = [part for part in node.args if not _counts(analysis, part, scope)]
        if len(others) == 1 < len(node.args) and not isinstance(others[0], ast.Starred):
            return _inside(analysis, others[0], scope)
    return node, scope


def _counts(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and bool(analysis.called(node, scope) & (NUMBERS | {"numpy.arange"}))


def gives_batches(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is an object of the project that iterates, a generator of it, or of a library."""
    for origin in origins(analysis, [Origin(node, scope)]):
        called = origin.node if isinstance(origin.node, ast.Call) and not origin.keys else None
        if called is not None and any(map(_is_generator, analysis.functions_called(called, origin.scope))):
            return True
    values = [value for place in _set_for(analysis, node, scope) for value in analysis.evaluate(*place)]
    return any(_iterates(analysis, value) for value in values)


def _set_for(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Place]:
    """Return an expression, and the one value that a program sets an attribute to: options.train = batches(options)."""
    if not isinstance(node, ast.Attribute):
        return [(node, scope)]
    assigned = [
        (assignment.value, where)
        for assignment, where in reached_nodes(analysis).of(ast.Assign)
        for target in assignment.targets
        if isinstance(target, ast.Attribute) and target.attr == node.attr
    ]
    return [(node, scope), *(assigned if len(assigned) == 1 else [])]


def _is_generator(function: object) -> bool:
    node = function.node  # type: ignore[attr-defined]
    return any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in own_nodes(node))


def _iterates(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Instance):
        bases = [base for base in analysis.classes.bases(value.scope) if base.partition(".")[0] not in KNOWN]
        has_method = any(analysis.classes.method(value.scope, name) for name in ("__iter__", "__next__"))
        return not is_module(analysis, value) and (has_method or any(map(LOOKS_LIKE_LOADER.search, bases)))
    made = value.base if isinstance(value, Item) else value
    if not isinstance(made, Result) or "." not in made.builder or made.builder in NUMBERS:
        return False
    return made.builder.partition(".")[0] not in KNOWN


def _inside(analysis: Analysis, node: ast.expr, scope: Scope) -> Place:
    """Return what is inside enumerate, a progress bar, iter, and variables that hold these."""
    seen_through = SAME_ELEMENTS | ENDLESS
    for _ in range(MOST_NAMES):
        while isinstance(node, ast.Call) and node.args and analysis.called(node, scope) & seen_through:
            node = node.args[0]
        held = bindings_of(analysis, node, scope) if isinstance(node, ast.Name) else []
        if len(held) != 1 or not isinstance(held[0][0].value, ast.Call) or held[0][0].path:
            break
        view, where = held[0][0].value, held[0][1]
        if not view.args or not analysis.called(view, where) & seen_through:
            break
        node, scope = view, where
    return node, scope

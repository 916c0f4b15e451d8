"""Objects of a project that give a batch by a method, of as many samples as they were told when they were made."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import given_parameters, last_name
from retrofit.analysis.flow.reachability import calls_within
from retrofit.analysis.flow.sources import functions_run
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, Value

from ...shards import is_same
from ..slices.sample_rows import NAMED_AS_BATCH
from ..without_batch import GIVES_ONE

if TYPE_CHECKING:
    from .... import Project

Place = tuple[ast.expr, Scope]


def sizes_of_sampler(project: Project, call: ast.Call, scope: Scope) -> tuple[Place, ...]:
    """Return the sizes in `sampler = Sampler(users, batch_size)`, of `sampler.next_batch()`; nothing for other calls.

    The object itself may be called, `sampler()`. The method is called of this object nowhere else, and the training
    gives the object nothing back.
    """
    functions, objects = functions_run(project.analysis, call, scope), _owners(project, call, scope)
    made = [v for v in objects if isinstance(v, Instance) and v.call is not None]
    if call.args or call.keywords or len({one.node for one in functions}) != 1 or not GIVES_ONE.search(last_name(call)):
        return ()
    if not made or len(made) < len(objects):
        return ()
    sites = [s for s in project.analysis.callers(functions[0].node) if s.scope.parent is not functions[0].scope.parent]
    is_counted = any(isinstance(outer, ast.While) for outer in scope.source.ancestors(call))  # `while tokens < budget`
    others = [site for site in sites if site.call is not call]
    is_alone = all(not is_counted and _is_of_another(project, s.call, s.scope, made) for s in others)
    models = {one.call for model in project.models for one in model.calls}
    if not is_alone or any(one in models for one, _ in calls_within(project.analysis, call, scope)):
        return ()
    if any(method != last_name(call) for method in _methods_in_loop(project, made)):
        return ()
    sizes = [size for value in made for size in _given_sizes(project, value)]
    is_one = len(sizes) == len(made) and all(is_same(project.analysis, sizes[0], size) for size in sizes)
    return tuple(sizes) if is_one and all(where is scope for _, where in sizes) else ()


def _owners(project: Project, call: ast.Call, scope: Scope) -> frozenset[Value]:
    """Return the objects of which a method is called, or that are called themselves."""
    called = project.analysis.evaluate(call.func, scope)
    if any(isinstance(value, Instance) for value in called):
        return called
    return project.analysis.evaluate(call.func.value, scope) if isinstance(call.func, ast.Attribute) else frozenset()


def _is_of_another(project: Project, call: ast.Call, scope: Scope, made: list[Instance]) -> bool:
    """Return whether a method is called of objects of the class that an evaluation has, not of those made here."""
    calls = [value.call if isinstance(value, Instance) else None for value in _owners(project, call, scope)]
    return bool(calls) and None not in calls and not {value.call for value in made} & set(calls)


def _methods_in_loop(project: Project, made: list[Instance]) -> Iterator[str]:
    """Yield the methods that a training loop calls of some objects."""
    calls, classes = {value.call for value in made}, {value.scope for value in made}
    for node, where in project.in_loops.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and where.parent not in classes:
            objects = [v for v in project.analysis.evaluate(node.func.value, where) if isinstance(v, Instance)]
            if any(value.scope in classes and value.call in {None, *calls} for value in objects):
                yield node.func.attr


def _given_sizes(project: Project, made: Instance) -> Iterator[Place]:
    """Yield what an object is given for the size of its batches, where that can be written as a batch of all ranks."""
    start = project.analysis.classes.method(made.scope, "__init__")
    if start is None or made.call is None:
        return
    names = given_parameters(start.scope)
    site = next((site for site in project.analysis.callers(start.node) if site.call is made.call), None)
    for name in (name for name in names if NAMED_AS_BATCH.search(name)):
        given = site.argument(names, name) if site is not None else None
        if given is not None and isinstance(given[0], (ast.Constant, ast.Name, ast.Attribute)):
            yield given

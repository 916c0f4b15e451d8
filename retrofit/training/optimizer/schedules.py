"""Numbers of steps that schedules of the learning rate are made with, counted from samples and a batch size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction, Result, Values
from retrofit.training.torch_api.distributed import WORLD_SIZE
from retrofit.training.torch_api.optimizers import SCHEDULE_NAMES
from retrofit.training.torch_api.runtime import LR_SCALING, SAMPLES_PER_STEP

from ..data.batch_values import BATCH, GRADIENT
from ..data.draws.slices.sample_rows import NAMED_AS_BATCH
from ..data.loaders import TRAIN
from ..data.shards import builders_of, is_same, places_given
from .rates import rates_of, rates_set

if TYPE_CHECKING:
    from .. import Project

Place = tuple[ast.expr, Scope]
DIVISION = (ast.Div, ast.FloorDiv)
LENGTH = re.compile(r"^(len|shape)$|(^|_)(size|length)$|^(n|num|number_of)_(train|samples|examples|images|data|rows)")
NUMBER_OF_STEPS = re.compile(r"(^|_)(total|steps|updates|iters|iterations|warmup|t_max)(_|$)", re.IGNORECASE)
SETTING = (ast.Assign, ast.Call)  # statements and calls that set a rate or make a schedule of it
BOUNDS = frozenset({"max", "min"})
COUNTS_STEPS = (*DIVISION, ast.Mod)  # whole batches, and whether one more is begun


def lengths(project: Project, node: ast.Assign | ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a schedule is made from, the functions of the step that it is given, and rates set by hand.

    An optimizer of the project's own may have a schedule in it, which a number of steps is for.
    """
    yield from ((rate, scope) for rate in rates_set(project.analysis, node, scope))
    if isinstance(node, ast.Assign):
        return
    if any(isinstance(value, Instance) and value.call is node for value in project.analysis.evaluate(node, scope)):
        named = [*((last_name(part), part) for part in node.args), *((k.arg or "", k.value) for k in node.keywords)]
        is_optimizer = any(optimizer.call is node for optimizer in project.optimizers)
        yield from ((part, scope) for name, part in named if is_optimizer and NUMBER_OF_STEPS.search(name))
    if not any(SCHEDULE_NAMES.search(name) for name in project.analysis.last_names(node, scope)):
        return
    if not any(_is_optimizer(project, argument, scope) for argument in _given(node)):
        return
    for argument in _given(node):
        yield argument, scope
        for value in project.analysis.evaluate(argument, scope):
            if isinstance(value, LocalFunction):
                yield from ((returned, value.scope) for returned in returns_of(value.node))


def _given(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def rate_terms(project: Project) -> set[ast.AST]:
    """Return what the learning rates of the optimizers are, and their terms and factors."""

    def find() -> set[ast.AST]:
        first = [place for optimizer in project.optimizers for place in rates_of(project.analysis, optimizer)]
        later = [
            place
            for node, scope in reached_nodes(project.analysis).of(*SETTING)
            for place in lengths(project, node, scope)
        ]
        starts = [Origin(*place) for place in first + later]
        parts = [(part, scope) for node, scope in first for part in (node, *getattr(node, "args", ()))]  # rd.scaled_lr
        terms = partial(_terms, project.analysis, [project.analysis.evaluate(*place) for place in parts])
        return {origin.node for origin in origins(project.analysis, starts, terms)}

    return project.analysis.fact("terms of learning rates", find)


def _terms(analysis: Analysis, first: list[Values], origin: Origin) -> list[Origin] | None:
    """Return the parts of a rate that are rates; of a product the factors that are seen to be, where one is."""
    node, scope = origin.node, origin.scope
    if isinstance(node, ast.AugAssign):
        return []  # a count
    if isinstance(node, ast.BinOp):
        parts = [node.left] if isinstance(node.op, DIVISION) else [node.left, node.right]
        is_product = isinstance(node.op, ast.Mult)
        rates = [part for part in parts if is_product and analysis.evaluate(part, scope) in first]
        rates += [part for part in parts if is_product and _is_fraction(analysis, part, scope)]
        return [origin.to(part) for part in rates or parts]
    if isinstance(node, ast.Call) and analysis.called(node, scope) & (LR_SCALING | BOUNDS):
        return [origin.to(part) for part in node.args]
    return None


def _is_fraction(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    numbers = (getattr(origin.node, "value", None) for origin in computed_from(analysis, node, scope))
    return any(isinstance(number, float) and not number.is_integer() for number in numbers)


def _is_optimizer(project: Project, node: ast.expr, scope: Scope) -> bool:
    values = project.analysis.evaluate(node, scope)
    calls = {value.call for value in values if isinstance(value, (Result, Instance))}
    return bool(calls & {optimizer.call for optimizer in project.optimizers}) or last_name(node).startswith("optim")


def batch_sizes(project: Project) -> list[Place]:
    """Return the batch size of each training loader, with the scope that it is in."""
    found = []
    for loader in project.loaders:
        if TRAIN in loader.roles:
            for builder, scope in builders_of(project.analysis, loader):
                sizes = places_given(project.analysis, builder, scope, "batch_size")
                found += [size for size in sizes if not _is_changed(project, *size)]
    return found


@answered_once
def sizes_of_steps(project: Project) -> list[Place]:
    """Return what a training may count its steps by: the batch sizes of its loaders, and of the batches it draws."""
    drawn = [size for draw in project.draws.batches.values() for size in draw.sizes]
    return [*batch_sizes(project), *project.draws.split_sizes, *drawn]


def _is_changed(project: Project, size: ast.expr, scope: Scope) -> bool:
    """Return whether a batch size is divided in place, so that it cannot be told what is counted with it."""
    if isinstance(size, ast.Attribute):
        given = project.ranks.set_attributes.get(size.attr, [])
        return any(WORLD_SIZE in project.ranks.sources_of(value, where) for value, where in given)
    _, bindings = (scope.find(size.id) if isinstance(size, ast.Name) else None) or (scope, [])
    return any(isinstance(binding.node, ast.AugAssign) for binding in bindings)


def single_process_sizes(
    project: Project, length: ast.expr, scope: Scope, sizes: list[Place], of_samples: bool = False
) -> list[Place]:
    """Return the batch sizes that a number of steps is divided by, without the number of processes.

    What is divided is a number of samples, wherever that comes from: len(frame), a list, a constant; with `of_samples`
    only what is known to be a length.
    """
    origins = project.ranks.origins(length, scope)
    nodes = [(node, where) for expression, where in origins for node in walk(expression)]
    is_rate = isinstance(scope.source.parents.get(length), ast.Assign)
    for size in sizes:
        found = [
            (part, where)
            for node, where in nodes
            if isinstance(node, ast.BinOp) and isinstance(node.op, COUNTS_STEPS)
            for part in _factors(node.right)
            if is_same(project.analysis, (part, where), size) or (part, where) in project.batch_sizes
            if not (of_samples or isinstance(node.op, ast.Mod) or is_rate or isinstance(part, ast.Constant))
            or is_of_samples(project, node.left, where)
        ]
        if found and not any(_is_of_processes(project, *place, size) for place in nodes):
            return [place for place in dict.fromkeys(found) if not _is_counted(project, *place)]
    return []


def counts_batches(project: Project, division: ast.BinOp, scope: Scope, sizes: list[Place]) -> bool:
    """Return whether a number of samples is divided by one of some batch sizes."""
    factors = [(part, scope) for part in _factors(division.right)]
    is_by_size = any(p in project.batch_sizes or is_same(project.analysis, p, s) for p in factors for s in sizes)
    return is_by_size and is_of_samples(project, division.left, scope)


def is_of_samples(project: Project, dividend: ast.expr, scope: Scope) -> bool:
    """Return whether a number is, or comes from, a length, or is named as one, and was not counted in a batch."""
    if {BATCH, GRADIENT} & project.batch_values.sources_of(dividend, scope):
        return False  # what is counted in a batch: mask.sum()
    parts = (part for node, _ in project.ranks.origins(dividend, scope) for part in walk(node))
    names = {last_name(part) for part in parts if isinstance(part, ast.expr)}
    return any(LENGTH.search(name) and not NAMED_AS_BATCH.search(name) for name in names)


def _factors(node: ast.expr) -> list[ast.expr]:
    """Return the factors of a divisor: BATCH and steps of float(BATCH * steps)."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    if isinstance(node, ast.Call) and last_name(node) in ("float", "int") and node.args:
        return _factors(node.args[0])
    return [node]


def _is_counted(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a batch size is that of all processes already."""
    holder = scope.source.parents.get(node)
    return isinstance(holder, ast.Call) and SAMPLES_PER_STEP in project.analysis.called(holder, scope)


def _is_of_processes(project: Project, node: ast.AST, scope: Scope, size: tuple[ast.expr, Scope]) -> bool:
    """Return whether this is a factor that comes from the number of processes, and not with a batch or a count."""
    outer = scope.source.parents.get(node)
    if not isinstance(outer, (ast.BinOp, ast.AugAssign)) or not isinstance(node, (ast.Name, ast.Attribute, ast.Call)):
        return False
    if WORLD_SIZE not in project.ranks.sources_of(node, scope) or is_same(project.analysis, (node, scope), size):
        return False
    origins = ((part, where) for inner, where in project.ranks.origins(node, scope) for part in walk(inner))
    return not any(is_call_of(project, place, "len") for place in origins)


def is_call_of(project: Project, place: tuple[ast.AST, Scope], name: str) -> bool:
    node, scope = place
    return isinstance(node, ast.Call) and len(node.args) == 1 and name in project.analysis.called(node, scope)

"""Numbers of steps of an epoch that a script computes from its samples: `len(dataset) // batch_size`, also to show it.

N processes that keep the batch size make 1/N of these steps.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.runtime import TRAINING_SHARES

from ...data.loaders import TRAIN, Loader
from ...data.shards import builders_of, is_same, places_given
from ...optimizer.schedules import COUNTS_STEPS, DIVISION, is_of_samples

if TYPE_CHECKING:
    from ... import Project

Made = set[tuple[ast.AST, object]]  # expressions, each with the entry of it that is meant
OF_TRAINING, OF_SOME_SAMPLES = "of training", "of some samples"
HELD_OUT = re.compile(r"(^|_)(test|val|valid|validation|eval|evaluation|dev|held)(_|\d|$)", re.IGNORECASE)
WHOLE = frozenset({"float", "int"})
OF_DATA = frozenset({"shape", "dataset", "sampler"})


def steps_counted(project: Project, size: ast.expr, scope: Scope) -> str:
    """Return of which samples a number of batches is where a batch size divides it; "" where it divides none.

    OF_TRAINING: of the data set of a training loader. OF_SOME_SAMPLES: it is not known of which.
    """
    division = _division(project, size, scope)
    if division is None:
        return ""
    training, others = _data(project)
    counted = {
        (o.node, o.keys) for o in origins(project.analysis, [Origin(division.left, scope)], partial(_counted, project))
    }
    if not training or counted & (others - training):
        return ""
    if counted & (training - others):
        return OF_TRAINING
    if any(HELD_OUT.search(last_name(part)) for node, _ in counted for part in walk(node) if _is_named(part)):
        return ""
    numbers = [node.value for node, _ in counted if isinstance(node, ast.Constant)]
    is_number = isinstance(division.op, DIVISION) and bool(numbers) and all(type(n) is int for n in numbers)
    is_number &= all(isinstance(node, (ast.Constant, ast.Name)) for node, _ in counted)
    return OF_SOME_SAMPLES if is_number or is_of_samples(project, division.left, scope) else ""


def _division(project: Project, size: ast.expr, scope: Scope) -> ast.BinOp | None:
    """Return the division by a batch size, also where what it divides has the size in it, to round it up."""
    inner: ast.AST = size
    for outer in scope.source.ancestors(size):
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, COUNTS_STEPS):
            if outer.right is inner:
                return outer
            return outer if is_same(project.analysis, (outer.right, scope), (size, scope)) else None
        is_sum = isinstance(outer, ast.BinOp) and isinstance(outer.op, (ast.Add, ast.Sub))
        if not is_sum and not (isinstance(outer, ast.Call) and last_name(outer) in WHOLE):
            return None
        inner = outer
    return None


def _is_named(node: ast.AST) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute))


def _counted(project: Project, origin: Origin) -> Iterable[Origin] | None:
    """Return what is counted, of a number that may be a length: the data set of len(dataset) and dataset.shape[0]."""
    node = origin.node
    if isinstance(node, ast.Call) and node.args and project.analysis.called(node, origin.scope) & TRAINING_SHARES:
        return [origin.to(node.args[0])]
    if isinstance(node, ast.Call) and last_name(node) in (*WHOLE, "len") and node.args:
        return [origin.to(node.args[0], keys=())]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        return [origin.to(node.func.value, keys=())]
    if isinstance(node, ast.Subscript) and last_name(node.value) == "shape":
        return [origin.to(node.value, keys=())]
    if isinstance(node, ast.Attribute) and node.attr in OF_DATA:
        return [origin.to(node.value, keys=())]
    is_sum = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))
    return [origin.to(part) for part in (node.left, node.right)] if is_sum else None  # type: ignore[union-attr]


def _data(project: Project) -> tuple[Made, Made]:
    """Return what makes the training loaders, with their data sets, and what makes those that only evaluate."""

    def find() -> tuple[Made, Made]:
        training = [loader for loader in project.loaders if loader.roles == {TRAIN}]
        others = [loader for loader in project.loaders if TRAIN not in loader.roles]
        return _made_of(project, training), _made_of(project, others)

    return project.analysis.fact("data of training loaders", find)


def _made_of(project: Project, loaders: list[Loader]) -> Made:
    def through(origin: Origin) -> Iterable[Origin] | None:
        node = origin.node
        if not isinstance(node, ast.Call) or project.analysis.functions_called(node, origin.scope):
            return None
        if not origin.keys:
            return [origin.to(part) for part in node.args]
        tables = [part for part in node.args if isinstance(part, (ast.List, ast.Tuple))]
        return [origin.to(part) for part in tables]  # the length n of random_split(data, [n, m])[0]

    made = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    given = [place for builder in made for place in places_given(project.analysis, *builder, "dataset")]
    found = origins(project.analysis, [Origin(*place) for place in given], through)
    return {*((call, ()) for call, _ in made), *((origin.node, origin.keys) for origin in found)}

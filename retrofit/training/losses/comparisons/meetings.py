"""Operations on all pairs of samples: in two loops over them, and on rows that are repeated for each other one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, closure, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.tensors import FLATTENS, REPEATS, SAME_ENTRIES, VIEWS

from ..reductions.reduction import plain_reader

if TYPE_CHECKING:
    from retrofit.training import Project

Operands = tuple[ast.expr, ast.expr]
TILED, SPREAD = 0, 1  # all rows again and again, each row several times
PASSES = SAME_ENTRIES | VIEWS | FLATTENS | REPEATS | {"tile"}
OF_PAIRS = {
    "cosine_similarity",
    "pairwise_distance",
    "dist",
    "dot",
    "mse_loss",
    "l1_loss",
    "mv",
    "matmul",
    "sub",
    "mul",
}
REPEATING = {"repeat", "repeat_interleave", "unsqueeze"}


@dataclass(frozen=True)
class SampleLoop:
    """A loop over samples: the names of what it draws, and those of their numbers."""

    node: ast.For | ast.comprehension
    elements: frozenset[str]
    numbers: frozenset[str]


def pairs_in_loops(project: Project, node: ast.AST, scope: Scope) -> tuple[Operands, list[ast.expr]] | None:
    """Return the operands of an operation on an element of each of two loops over samples, and what is gone through."""
    operands = _operands(node)
    if operands is None:
        return None
    loops = list(_loops_around(project, node, scope))
    used = [{loop.node for loop in loops if _uses(part, loop)} for part in operands]
    is_pair = len(loops) > 1 and all(len(found) == 1 for found in used) and used[0] != used[1]
    return (operands, [loop.node.iter for loop in loops]) if is_pair else None


def one_and_all(project: Project, node: ast.AST, scope: Scope) -> Operands | None:
    """Return the operands of an operation, in a loop over the samples, on one of them and on the rows of all."""
    is_known = isinstance(node, ast.BinOp) or (isinstance(node, ast.Call) and last_name(node) in OF_PAIRS)
    operands = _operands(node) if is_known else None
    loops = list(_loops_around(project, node, scope)) if operands is not None else []
    if operands is None or len(loops) != 1:
        return None
    loop = loops[0]
    uses = [_uses(part, loop) for part in operands]
    whole = operands[uses.index(False)] if sum(uses) == 1 else None
    if whole is None or _is_computed_in(project, whole, scope, loop):
        return None
    kind = plain_reader(project).kind(whole, scope)
    return operands if kind.has_rows and kind.axis == 0 else None


def _is_computed_in(project: Project, node: ast.expr, scope: Scope, loop: SampleLoop) -> bool:
    """Return whether an expression is computed from what the loop has of one sample, also by way of other variables."""
    holder = loop.node if isinstance(loop.node, ast.For) else scope.source.parents[loop.node]
    inside = set(walk(holder))

    def through(origin: Origin) -> list[Origin]:
        return [part for part in inputs(project.analysis, origin) if part.node in inside]

    names = loop.elements | loop.numbers
    steps = origins(project.analysis, [Origin(node, scope)], through)
    return any(isinstance(step.node, ast.Name) and step.node.id in names for step in steps)


def repeated_pairs(project: Project, node: ast.AST, scope: Scope) -> tuple[Operands, list[Origin]] | None:
    """Return what is compared row by row where one operand has all rows for each row of the other.

    With the places that repeat the rows of each.
    """
    operands = _operands(node)
    if operands is None or not project.analysis.fact("rows are repeated", lambda: _repeats_rows(project)):
        return None
    first = _repetition(project, operands[0], scope)
    second = _repetition(project, operands[1], scope) if first is not None else None
    if first is None or second is None or {first[0], second[0]} != {TILED, SPREAD}:
        return None
    samples = plain_reader(project).samples
    is_of_one = any(samples.is_within(*place) for place in call_chains(project.analysis, node, scope))
    return (operands, [first[1], second[1]]) if not is_of_one else None


def _repeats_rows(project: Project) -> bool:
    """Return whether the code that runs repeats the rows of anything at all: a search for each operand is long."""
    for node, _ in reached_nodes(project.analysis).of(ast.Attribute, ast.Subscript, ast.Call):
        if isinstance(node, ast.Attribute) and node.attr in REPEATING:
            return True
        if isinstance(node, ast.Subscript) and _by_new_axis(node) is not None:
            return True
        if isinstance(node, ast.Call) and _by_shape(node) is not None:
            return True
    return False


def _operands(node: ast.AST) -> Operands | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Sub, ast.Mult, ast.MatMult)):
        return node.left, node.right
    if not isinstance(node, ast.Call):
        return None
    given = [*node.args[:2]]
    if len(given) == 1 and isinstance(node.func, ast.Attribute):
        given.insert(0, node.func.value)
    return (given[0], given[1]) if len(given) == 2 else None


def _loops_around(project: Project, node: ast.AST, scope: Scope) -> Iterator[SampleLoop]:
    """Yield the loops over samples around a node in its own function, the outermost one first."""
    samples = plain_reader(project).samples
    found: list[ast.For | ast.comprehension] = []
    for outer in scope.source.ancestors(node):
        if outer is scope.node or outer in project.batch_values.loops:
            break
        if isinstance(outer, (ast.For, ast.ListComp, ast.GeneratorExp)):
            found += [outer] if isinstance(outer, ast.For) else reversed(outer.generators)
    drawn: dict[ast.AST, SampleLoop] = {}
    for loop in reversed(found):
        elements, numbers = _names(loop)
        inner = next((k for k, other in drawn.items() if _uses(loop.iter, other)), None)
        if inner is not None:  # over what a sample has
            other = drawn[inner]
            drawn[inner] = SampleLoop(other.node, other.elements | elements, other.numbers | numbers)
        elif samples.goes_through(loop.iter, scope):
            drawn[loop] = SampleLoop(loop, elements, numbers)
    yield from drawn.values()


def _names(loop: ast.For | ast.comprehension) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names that a loop gives to elements, and those that it gives to their numbers."""
    names = [part.id for part in walk(loop.target) if isinstance(part, ast.Name)]
    is_counted = {"range": len(names), "enumerate": 1}.get(last_name(loop.iter), 0)
    return frozenset(names[is_counted:]), frozenset(names[:is_counted])


def _uses(node: ast.expr, loop: SampleLoop) -> bool:
    """Return whether an expression has an element of a loop in it: x of `for x in z`, z[i] of `for i in range(n)`."""
    for part in walk(node):
        if isinstance(part, ast.Name) and part.id in loop.elements:
            return True
        index = walk(part.slice) if isinstance(part, ast.Subscript) else ()
        if any(isinstance(inner, ast.Name) and inner.id in loop.numbers for inner in index):
            return True
    return False


def _repetition(project: Project, node: ast.expr, scope: Scope) -> tuple[int, Origin] | None:
    """Return how, and where, the rows of an expression are repeated for a batch of the training; None if not."""
    repeated: list[tuple[int, Origin]] = []  # what comes before says it first: `x.unsqueeze(1).repeat(n, 1, 1)`
    for origin in closure([Origin(node, scope)], lambda origin: _before(project, origin)):
        call = origin.node
        found = None
        if not _is_of_batches(project, origin):  # of one sample, before it is in a batch, or of an evaluation
            continue
        if isinstance(call, ast.Subscript) and (not origin.keys or call is node):
            found = _by_new_axis(call)
        elif isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and not origin.keys:
            found = _by_method(call, call.func.attr)
            by_repeat = _by_repeat(call) if call.func.attr == "repeat" else None
            repeated += [] if by_repeat is None else [(by_repeat, origin)]
        if found is not None:
            return found, origin
    return repeated[0] if repeated else None


def _is_of_batches(project: Project, origin: Origin) -> bool:
    """Return whether an expression is run for the batches of the training, also once before several steps with one."""
    around = origin.scope.source.ancestors(origin.node)
    return origin.node in project.nodes_in_batches or any(loop in project.batch_values.loops for loop in around)


def _before(project: Project, origin: Origin) -> Iterator[Origin]:
    """Yield what an expression has its rows from, one step before."""
    yield from sources(project.analysis, origin)
    call = origin.node
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or origin.keys:
        return
    if call.func.attr in PASSES | {"repeat"}:
        yield Origin(call.func.value, origin.scope)


def _by_new_axis(node: ast.Subscript) -> int | None:
    index = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
    new = [place for place, part in enumerate(index) if isinstance(part, ast.Constant) and part.value is None]
    return new[0] if new in ([TILED], [SPREAD]) else None


def _by_method(call: ast.Call, name: str) -> int | None:
    literals = [part.value for part in call.args if isinstance(part, ast.Constant)]
    dims = [k.value.value for k in call.keywords if k.arg == "dim" and isinstance(k.value, ast.Constant)]
    if name == "unsqueeze":
        return {"[0]": TILED, "[1]": SPREAD}.get(str(literals or dims))
    if name == "repeat_interleave":
        return SPREAD if 0 in (*dims, *literals[-1:]) else None
    return _by_shape(call)


def _by_shape(call: ast.Call) -> int | None:
    """Return TILED for `x.view(1, n, k)` and SPREAD for `x.view(n, 1, k)`."""
    if last_name(call) not in VIEWS:
        return None
    shape = call.args[0].elts if len(call.args) == 1 and isinstance(call.args[0], (ast.Tuple, ast.List)) else call.args
    ones = [place for place, part in enumerate(shape[:2]) if isinstance(part, ast.Constant) and part.value == 1]
    return ones[0] if len(shape) > 1 and ones in ([TILED], [SPREAD]) else None


def _by_repeat(call: ast.Call) -> int | None:
    """Return TILED for `x.repeat(n, 1)`, which has all rows n times."""
    first = call.args[0] if call.args else None
    if isinstance(first, (ast.Tuple, ast.List)) and first.elts:
        first = first.elts[0]
    is_once = isinstance(first, ast.Constant) and first.value == 1
    return TILED if first is not None and not is_once else None

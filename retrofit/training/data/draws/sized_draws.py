"""Random draws that have an entry per sample of a batch, and the expression that says how many."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result
from retrofit.training.torch_api.draws import (
    BY_PROBABILITY,
    COUNTED,
    DISTRIBUTIONS,
    GENERATED,
    INDICES,
    ORDERS,
    ROWS,
    SAMPLES,
    SHAPED,
    SHUFFLES,
    of_common_stream,
)
from retrofit.training.torch_api.randomness import DRAWS, DRAWS_IN_PLACE, GENERATORS
from retrofit.training.torch_api.tensors import FILLED, TENSOR_CLASSES

SCALAR = ast.Constant(1)
SMALLEST = 8  # number of samples that a batch is written with
SPREAD = {"rand", "randn"} | FILLED | TENSOR_CLASSES  # their arguments are the dimensions


def names_of(analysis: Analysis, call: ast.Call, scope: Scope) -> set[str]:
    return {of_common_stream(name) for name in analysis.called(call, scope)}


def is_order(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether a call gives a random order of everything, or brings something into one in place."""
    names = names_of(analysis, node, scope) if isinstance(node, ast.Call) else set()
    if ROWS in names:
        return argument_for(node, ["n", "frac"], "frac") is not None  # type: ignore[arg-type]
    return bool(names & (ORDERS | SHUFFLES))


def shuffled(analysis: Analysis, nodes: Iterable[tuple[ast.AST, Scope]]) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls among some nodes that bring something into a random order in place."""
    for node, scope in nodes:
        is_statement = isinstance(scope.source.parents.get(node), ast.Expr)
        if is_statement and last_name(node) == "shuffle" and is_order(analysis, node, scope):
            yield node, scope  # type: ignore[misc]


def gives_indices(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a draw is of whole numbers, of entries of something, or of samples as a library makes them."""
    names = names_of(analysis, node, scope) if isinstance(node, ast.Call) else set()
    return not names or any(
        name in INDICES or name == ROWS or name.startswith((GENERATED, DISTRIBUTIONS)) for name in names
    )


def has_unseeded_generator(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether a method of a generator is called that each process seeds in its own way: default_rng()."""
    if not isinstance(call.func, ast.Attribute):
        return False
    made = [v for v in analysis.evaluate(call.func.value, scope) if isinstance(v, Result) and v.builder in GENERATORS]
    return any(not value.call.args and not value.call.keywords for value in made)


def size_of(analysis: Analysis, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return the expression of how many entries a draw has, along its first dimension; None for what draws no batch.

    A shape that is not written down is returned as it is, as a Starred.
    """
    shape = shape_of(analysis, node, scope)
    if isinstance(shape, (ast.Tuple, ast.List)):
        shape = shape.elts[0] if shape.elts else SCALAR
    return None if isinstance(shape, ast.Constant) and shape.value in (1, None) else shape


def is_small(size: ast.expr | None) -> bool:
    """Return whether this is a number of a few values, as of a place in an image: no batch."""
    return isinstance(size, ast.Constant) and isinstance(size.value, int) and size.value < SMALLEST


def is_number(size: ast.expr, scope: Scope) -> bool:
    """Return whether a size is one number, and not a shape."""
    if isinstance(size, ast.Name):
        found = scope.find(size.id)
        values = [binding.value for binding in (found[1] if found else []) if not binding.path]
        return not any(isinstance(value, (ast.Tuple, ast.List)) for value in values)
    return not isinstance(size, (ast.Tuple, ast.List))


def dimensions_of(analysis: Analysis, node: ast.expr, scope: Scope) -> int:
    """Return how many dimensions a draw has by what is written, 1 for a list or an array of indices."""
    shape = shape_of(analysis, node, scope)
    if isinstance(shape, (ast.Tuple, ast.List)):
        return len(shape.elts)
    outer = next((part for part in walk(node) if isinstance(part, ast.Call) and shape in part.args), None)
    is_spread = outer is not None and shape is outer.args[0] and last_name(outer) in SPREAD
    return len(outer.args) if is_spread and outer is not None else 1


def drawn_from(analysis: Analysis, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return the operands of a draw, without the lengths of its dimensions after that of the samples."""
    shape = shape_of(analysis, node, scope)
    parts = [part for part in children(node) if isinstance(part, ast.expr)]
    if isinstance(shape, (ast.Tuple, ast.List)):
        return [shape.elts[0] if part is shape else part for part in parts if part is not shape or shape.elts]
    is_spread = isinstance(node, ast.Call) and bool(names_of(analysis, node, scope) & SHAPED)
    return [part for part in parts if not is_spread or part not in node.args[1:]]  # type: ignore[attr-defined]


def shape_of(analysis: Analysis, node: ast.AST, scope: Scope) -> ast.expr | None:
    """Return the expression of a draw's shape, or its length: `SCALAR` for one number, None where nothing is drawn."""
    if isinstance(node, ast.ListComp):
        return _length_of_list(analysis, node, scope)
    if isinstance(node, ast.Subscript) and is_order(analysis, node.value, scope):
        cut = node.slice if isinstance(node.slice, ast.Slice) else ast.Slice()
        return cut.upper if cut.lower is None and cut.step is None else None
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS_IN_PLACE:
        return _filled(node.func.value)
    names = names_of(analysis, node, scope)
    if ROWS in names:
        return None if is_order(analysis, node, scope) else argument_for(node, ["n"], "n") or SCALAR
    if names & SHAPED:
        return _spread(node)
    if names & BY_PROBABILITY:
        return _filled(node.args[0]) if node.args else None
    if any(name.startswith(GENERATED) for name in names):
        return argument_for(node, ["n_samples"], "n_samples")
    if any(name.startswith(DISTRIBUTIONS) and name.rpartition(".")[2] in SAMPLES for name in names):
        return argument_for(node, ["sample_shape"], "sample_shape")
    known = [COUNTED[name] for name in names if name in COUNTED]
    return _counted(node, *known[0]) if known else None


def _counted(call: ast.Call, position: int, name: str) -> ast.expr:
    given = argument_for(call, [], name)
    if given is None and len(call.args) > position:
        given = call.args[position]
    if given is None and len(call.args) == 2 and isinstance(call.args[1], (ast.Tuple, ast.List)):
        given = call.args[1]  # torch.randint(high, (size,))
    return given or SCALAR


def _spread(call: ast.Call) -> ast.expr:
    given = argument_for(call, ["size"], "size")
    if not call.args:
        return given or SCALAR
    return call.args[0]


def _filled(node: ast.expr) -> ast.expr | None:
    """Return the shape in torch.empty(8, 2) or torch.full((8, 2), 0.5); None for other tensors."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr not in FILLED | TENSOR_CLASSES or not node.args:
        return None
    return node.args[0]


def _length_of_list(analysis: Analysis, node: ast.ListComp, scope: Scope) -> ast.expr | None:
    """Return the length of `[random.choice(values) for _ in range(length)]`."""
    drawn = node.generators[0].iter
    is_plain = len(node.generators) == 1 and not node.generators[0].ifs and isinstance(drawn, ast.Call)
    if not is_plain or "range" not in analysis.called(drawn, scope) or len(drawn.args) != 1:  # type: ignore[arg-type, attr-defined]
        return None
    draws = any(_draws_one(analysis, part, scope) for part in walk(node.elt))
    return drawn.args[0] if draws else None  # type: ignore[attr-defined]


def _draws_one(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    return isinstance(node, ast.Call) and bool(names_of(analysis, node, scope) & DRAWS)

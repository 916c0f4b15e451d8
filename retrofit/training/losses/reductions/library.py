"""Reductions by libraries: losses, as a sum over the batch, a mean, none; norms to their own power, as a sum."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.scopes import Scope, is_imported
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result
from retrofit.training.torch_api.losses import COUNTS_TOKENS, LIBRARY_POSITIONS, LIBRARY_REDUCTIONS, SUM_BY_DEFAULT
from retrofit.training.torch_api.tensors import MATRIX_NORMS, NORMS

from ..terms import MEAN

COUNTED_MEAN = "counted mean"  # divided by the tokens of the batch that count, or by its frames


def library_reduction(analysis: Analysis, call: ast.Call, scope: Scope) -> str | None:
    """Return how the loss that a function or an object of a library computes is reduced; None for anything else.

    "sum", "mean", "none", COUNTED_MEAN, and "" where that cannot be told.
    """
    made = [value for value in analysis.evaluate(call.func, scope) if isinstance(value, Result)]
    written = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    called = analysis.called(call, scope) or {written}
    names = {value.builder for value in made} or {name for name in called if not _key(name)[1][:1].isupper()}
    known = next((key for key in map(_key, names) if key in LIBRARY_REDUCTIONS), None)
    if known is None and not any(_is_loss(name) for name in names):
        return None
    given = {k.arg: (k.value, value.scope) for value in made for k in value.call.keywords}
    given.update({k.arg: (k.value, scope) for k in call.keywords})
    positions = LIBRARY_POSITIONS.get(known, {}) if known else {}
    given.update({name: (call.args[at], scope) for name, at in positions.items() if at < len(call.args)})
    options = {name: _literal(analysis, *place) for name, place in given.items() if name is not None}
    return _reduction(options, LIBRARY_REDUCTIONS[known] if known else MEAN)


def _key(name: str) -> tuple[str, str]:
    return name.partition(".")[0], name.rpartition(".")[2]


def _is_loss(name: str) -> bool:
    last = _key(name)[1]
    return "loss" in last.lower() or last.endswith("Criterion")


def _reduction(options: dict[str, object], default: str) -> str:
    if any(options.get(name) == value for name, value in COUNTS_TOKENS.items()):
        return COUNTED_MEAN
    if "reduction" in options:
        reduction = options["reduction"]
        return reduction if isinstance(reduction, str) else ""
    average = options.get("size_average")
    return {True: MEAN, False: SUM_BY_DEFAULT}[average] if isinstance(average, bool) else default


def _literal(analysis: Analysis, node: ast.expr, scope: Scope) -> object:
    """Return the literal that an option has wherever it is set, None where it is not known."""
    if isinstance(node, ast.Constant):
        return node.value
    nodes = [value.node for value in analysis.evaluate(node, scope) if isinstance(value, Display)]
    found = {part.value for part in nodes if isinstance(part, ast.Constant)}
    return next(iter(found)) if len(found) == 1 and len(nodes) == 1 else None


def raised_norm(base: ast.expr, exponent: ast.expr, scope: Scope) -> ast.expr | None:
    """Return the tensor of which `base ** exponent` adds up the powers of the entries, None for all else."""
    call = _assigned(base, scope)
    if not isinstance(call, ast.Call) or last_name(call) not in NORMS or not isinstance(exponent, ast.Constant):
        return None
    of_object = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    given = [*(part for part in of_object if not is_imported(part, scope)), *call.args]
    order = next((k.value for k in call.keywords if k.arg in ("p", "ord")), given[1] if len(given) > 1 else None)
    if not given or (order is not None and not isinstance(order, ast.Constant)):
        return None
    value = order.value if isinstance(order, ast.Constant) else None
    if value is None or value == "fro":
        return given[0] if exponent.value == 2 else None
    is_of_matrix = last_name(call) in MATRIX_NORMS and "linalg" in ast.unparse(call.func)  # of its singular values
    return given[0] if isinstance(value, int) and value > 0 and value == exponent.value and not is_of_matrix else None


def is_square(left: ast.expr, right: ast.expr) -> bool:
    """Return whether both factors are one name: `n * n`."""
    return isinstance(left, ast.Name) and isinstance(right, ast.Name) and left.id == right.id


def _assigned(node: ast.expr, scope: Scope) -> ast.expr:
    """Return what the one assignment of a name says, the expression itself for all else."""
    if not isinstance(node, ast.Name):
        return node
    owner, bindings = live_bindings(node, scope)
    first = bindings[0] if len(bindings) == 1 and owner is scope else None
    is_one = first is not None and first.kind == "value" and not first.path and first.value is not None
    return first.value if is_one else node  # type: ignore[union-attr, return-value]

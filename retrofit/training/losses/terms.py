"""Terms of a training loss: the calls of loss functions that `loss.backward()` depends on, and how they reduce."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, External, Result, Value
from retrofit.training.torch_api.losses import (
    COUNTED,
    LOSS_FUNCTIONS,
    OPTIONS,
    REDUCTION_OPTIONS,
    UNWEIGHTED,
    WEIGHTED,
    loss_class,
)

from ..distributed.distribution import Distribution, leads_to_samples
from ..loops import Path
from .criteria.derived_criteria import Base, bases_run, is_of_super
from .reductions.decided import arm_taken

MEAN = "mean"


@dataclass(frozen=True)
class Term:
    """A call of a loss function of torch.

    `builder` is where it gets its options: the call itself, that of nn.CrossEntropyLoss, or functools.partial(f, ...).
    """

    call: ast.Call
    scope: Scope
    builder: ast.Call
    builder_scope: Scope
    name: str  # cross_entropy, CrossEntropyLoss
    options: dict[str, ast.expr | None]  # None: not known, in **options that cannot be seen
    can_be_wrapped: bool = True  # not `nn.MSELoss.forward(self, x, y)`, in a class that is derived from it

    @property
    def reduction(self) -> str:
        """How the losses of single samples become one: "" where that cannot be told."""
        old = [_given(self.options, name) for name in ("size_average", "reduce")]  # None: as if not given
        if any(option is not None for option in old):
            average, reduces = (True if option is None else option for option in old)
            known = isinstance(average, bool) and isinstance(reduces, bool)
            return ("none" if not reduces else MEAN if average else "sum") if known else ""
        given = _literal(self.options["reduction"]) if "reduction" in self.options else MEAN
        return given if isinstance(given, str) else ""

    @property
    def counts(self) -> bool:
        """Whether it averages, as far as is known, over what is not ignored, or by the weights of the classes."""
        given = [self.options[name] for name in ("ignore_index", "weight") if name in self.options]
        is_given = any(not isinstance(option, ast.Constant) or option.value is not None for option in given)
        return is_given and self.reduction in (MEAN, "") and self.name in COUNTED


def _given(options: dict[str, ast.expr | None], name: str) -> object:
    """Return the value of an option, None where it is not given or None, and "" where it is not known."""
    if name not in options:
        return None
    option = options[name]
    return option.value if isinstance(option, ast.Constant) else ""


def terms_at(analysis: Analysis, node: ast.AST, scope: Scope) -> list[Term]:
    """Return the losses that a call can compute with loss functions of torch."""
    if not isinstance(node, ast.Call):
        return []
    known: dict[tuple[ast.Call, Scope], list[Term]] = analysis.fact("terms", dict)
    if (node, scope) not in known:
        terms = [term for value in analysis.evaluate(node.func, scope) for term in _term(analysis, node, scope, value)]
        terms += [_term_of_base(analysis, node, scope, base) for base in bases_run(analysis, node, scope)]
        known[node, scope] = sorted(terms, key=lambda term: (term.builder.lineno, term.builder.col_offset))
    return known[node, scope]


def term_of(analysis: Analysis, node: ast.AST, scope: Scope) -> Term | None:
    """Return the loss that a call computes with a loss function of torch, None where it is not one or not known."""
    terms = terms_at(analysis, node, scope)
    return terms[0] if terms else None


def _term(analysis: Analysis, call: ast.Call, scope: Scope, value: Value) -> list[Term]:
    """Return the terms of what a call runs: of one value, or of several wrapped by a partial."""
    options = partial(_options, analysis)
    if isinstance(value, External) and _is_function(value):
        name = value.name.rpartition(".")[2]
        return [Term(call, scope, call, scope, name, options(call, scope, name))]
    if not isinstance(value, Result):
        return []
    if value.is_partial:
        functions = [f for f in analysis.evaluate(value.call.args[0], value.scope) if isinstance(f, External)]
        names = [f.name.rpartition(".")[2] for f in functions if _is_function(f)]
        inner = options(value.call, value.scope)
        return [Term(call, scope, value.call, value.scope, n, {**inner, **options(call, scope, n)}) for n in names]
    name = loss_class(value.builder)
    if not name:
        return []
    outer = value.receiver
    inner = options(outer.call, outer.scope) if isinstance(outer, Result) and outer.is_partial else {}
    return [Term(call, scope, value.call, value.scope, name, {**inner, **options(value.call, value.scope, name)})]


def _term_of_base(analysis: Analysis, call: ast.Call, scope: Scope, base: Base) -> Term:
    """Return the term of a criterion of the project that is derived from one of torch."""
    given: dict[str, ast.expr | None] = {}
    for made, where in base.set_up:
        is_unbound = last_name(made) == "__init__" and not is_of_super(made)  # nn.MSELoss.__init__(self)
        without = ast.Call(func=made.func, args=made.args[is_unbound:], keywords=made.keywords)
        given.update(_options(analysis, without, where, base.name))
    for name in REDUCTION_OPTIONS:  # self.reduction = "none"
        places = analysis.classes.attribute_bindings(base.owner, name)
        values = [_constant(analysis, binding.value, where) for binding, where in places]
        if values:
            given[name] = values[0] if len(values) == 1 else None
    builder, where = base.made or (call, scope)
    is_plain = base.made is not None or (last_name(call) == "forward" and is_of_super(call))
    return Term(call, scope, builder, where, base.name, given, is_plain)


def _is_function(value: External) -> bool:
    module, _, name = value.name.rpartition(".")
    return module == "torch.nn.functional" and name in LOSS_FUNCTIONS


def _options(analysis: Analysis, call: ast.Call, scope: Scope, name: str = "") -> dict[str, ast.expr | None]:
    """Return the options that a call of the loss `name`, or of a partial, gives, in `**options` too."""
    positions = OPTIONS if name in COUNTED else list(REDUCTION_OPTIONS) if name in UNWEIGHTED else []
    positions = ["weight", *REDUCTION_OPTIONS] if name in WEIGHTED else positions
    positions = positions if name.endswith("Loss") else ["input", "target", *positions]
    found: dict[str, ast.expr | None] = {}
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = keyword.value
            continue
        seen = {option: analysis.containers.places(keyword.value, scope, option) for option in OPTIONS}
        found.update({option: places[0][0] for option, places in seen.items() if places})
        if not _is_display(analysis, keyword.value, scope):
            found.setdefault("ignore_index", None)
    found = {**dict(zip(positions, call.args)), **found} if name else found
    found = {option: given for option, given in found.items() if option not in REDUCTION_OPTIONS or not _is_none(given)}
    ways = {option: _constant(analysis, found[option], scope) for option in REDUCTION_OPTIONS if option in found}
    return {**found, **ways}


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _constant(analysis: Analysis, node: ast.expr | None, scope: Scope) -> ast.expr | None:
    """Return the literal that an option has wherever it is set, None where it is not known."""
    values = analysis.evaluate(arm_taken(analysis, node, scope), scope)
    literals = [value.node if isinstance(value, Display) else None for value in values]
    same = {_literal(literal) for literal in literals}
    return literals[0] if len(same) == 1 and None not in same else None


def _is_display(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether all of `**options` is written down in the project."""
    values = analysis.evaluate(node, scope)
    return bool(values) and all(
        isinstance(value, Display) or (isinstance(value, Result) and value.builder == "dict") for value in values
    )


def _literal(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None


def loss_expressions(path: Path) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield what a backward call starts from, and everything in its function that this is computed from."""
    frame = path.frames[0]
    call = frame.node
    assert isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)

    def computed_from(node: ast.expr) -> list[ast.expr]:
        names = (part.id for part in walk(node) if isinstance(part, ast.Name))
        return [value for name in names for value in _assigned(name, frame.scope)]

    yield from ((node, frame.scope) for node in closure([call.func.value], computed_from))


def is_of_all(analysis: Analysis, distribution: Distribution, path: Path) -> bool:
    """Return whether a loss is computed from what all processes have: gathered embeddings, a common count."""
    return any(
        isinstance(node, ast.Call) and leads_to_samples(analysis, distribution, node, scope)
        for expression, scope in loss_expressions(path)
        for node in walk(expression)
    )


def _assigned(name: str, scope: Scope) -> list[ast.expr]:
    """Return the expressions that a name in a function is computed by."""
    found = []
    for binding in scope.bindings.get(name, []):
        if isinstance(binding.node, ast.AugAssign):
            found.append(binding.node.value)
        elif binding.kind == "value" and binding.value is not None:
            found.append(binding.value)
    return found


def terms_in(node: ast.expr) -> set[str]:
    """Return the names that a sum is made of, with or without factors: `loss_a + 0.1 * loss_b`."""
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.UnaryOp):
        return terms_in(node.operand)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return terms_in(node.left) | terms_in(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
        terms = [terms_in(part) for part in (node.left, node.right) if not isinstance(part, ast.Constant)]
        return terms[0] if len(terms) == 1 else _of_one_factor(node)
    return set()


def _of_one_factor(node: ast.BinOp) -> set[str]:
    """Return the terms of a factor, where the other one is an option: `args.weight * loss`, not `a * b`."""
    factors = [node.left, node.right]
    settings = [part for part in factors if isinstance(part, (ast.Attribute, ast.Subscript))]
    return terms_in(next(part for part in factors if part not in settings)) if len(settings) == 1 else set()

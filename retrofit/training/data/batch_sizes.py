"""The settings that the batch sizes of the training loaders are read from, and the other uses of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.calls.parameters import given_for
from retrofit.analysis.flow.main_guard import is_under_main_of_another
from retrofit.analysis.flow.reachability import known_scopes
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.scopes import Binding, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Item
from retrofit.training.torch_api.data import LOADER_PARAMETERS

from .drawn import builders_of_value, loaders_in
from .draws.draw import Draws
from .loaders import Loader
from .next_calls import TRAIN

MOST_DEPTH = 4
OF_LOADER = "batch_size"  # an attribute of the loaders, also of those that are sharded: the batch size of the script
Identity = Callable[[ast.expr, Scope, int], object]
WHOLE_NUMBERS = frozenset({"int", "round", "math.floor", "math.ceil"})


class BatchSizes:
    """The variables and options that say how many samples a training loader puts into a batch."""

    def __init__(self, analysis: Analysis, loaders: list[Loader], draws: Draws) -> None:
        self.analysis = analysis
        self._identities: dict[tuple[ast.AST | None, Scope, int], object] = {}
        self.loaders = calls = {call for loader in loaders if TRAIN in loader.roles for call in loader.builders}
        sources = analysis.modules.sources.values()
        built = [(call, source) for source in sources for call in calls if call in source.parents]
        self.variables = {loader.variable for loader in loaders if loader.variable and TRAIN in loader.roles}
        self.known: set[object] = {OF_LOADER}
        self.known |= {size for place in built for size in self._read_by(*place)}
        self._numbers = self._written_for(built)
        drawn = [place for draw in draws.batches.values() for place in draw.sizes]
        read = closure([*drawn, *draws.split_sizes], self._given)
        self.known |= {self._identity(*place) for place in read}
        self.known -= {None}

    def _read_by(self, call: ast.Call, source: Source) -> Iterator[object]:
        scope = self.analysis.scope_at(source, call)
        for size in arguments_given(self.analysis, call, scope, LOADER_PARAMETERS, "batch_size"):
            yield self._identity(*size)

    def _written_for(self, built: list[tuple[ast.Call, Source]]) -> set[object]:
        """Return the number that is written as the batch size of all training loaders, nothing where they differ."""
        found: set[object] = set()
        for call, source in built:
            sizes = arguments_given(
                self.analysis, call, self.analysis.scope_at(source, call), LOADER_PARAMETERS, OF_LOADER
            )
            values = [value for size in sizes for value in self.analysis.evaluate(*size)]
            found |= {getattr(value.node, "value", None) if isinstance(value, Display) else None for value in values}
        return found if len(found) == 1 and all(type(size) is int and size > 1 for size in found) else set()  # type: ignore[operator]

    def is_number(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a number is as large as the batch size, or a product of such a number: 8, 4 * 8.

        Also a variable that has this number, which another one than that of the loader may be.
        """
        return any(self._is_number(part, scope) for part in _factors(node)) if self._numbers else False

    def _is_number(self, node: ast.expr, scope: Scope) -> bool:
        values = self.analysis.evaluate(node, scope)
        found = {getattr(value.node, "value", None) if isinstance(value, Display) else None for value in values}
        return bool(found) and found <= self._numbers

    def _given(self, place: tuple[ast.expr, Scope]) -> Iterator[tuple[ast.expr, Scope]]:
        """Yield what callers give for a size that is a parameter where the batch is drawn."""
        node, scope = place
        for binding, where in bindings_of(self.analysis, node, scope) if isinstance(node, ast.Name) else ():
            if binding.kind == "parameter":
                found = given_for(self.analysis, binding.name, where, ())
                yield from ((given, site) for given, site, keys in found if not keys)

    def __contains__(self, place: tuple[ast.AST, Scope]) -> bool:
        node, scope = place
        return bool(self.known) and self._identity(node, scope) in self.known

    def product(self, node: ast.AST, scope: Scope) -> ast.BinOp | None:
        """Return so many times a batch size, if a variable is set, once, to it: tokens = batch_size * length."""
        bindings = bindings_of(self.analysis, node, scope) if isinstance(node, (ast.Name, ast.Attribute)) else []
        value = bindings[0][0].value if len(bindings) == 1 else None
        if not isinstance(value, ast.BinOp):
            return None
        factors = _factors(value)
        is_number = not any(isinstance(part, ast.Constant) and isinstance(part.value, float) for part in factors)
        of_size = [part for part in factors if (part, bindings[0][1]) in self]
        return value if len(of_size) == 1 and is_number else None

    def _identity(self, node: ast.AST | None, scope: Scope, depth: int = MOST_DEPTH) -> object:
        """Return what a size refers to: the variable that it is, the option that is read, what is computed of both."""
        question = (node, scope, depth)
        if question not in self._identities:
            self._identities[question] = self._found_identity(node, scope, depth)
        return self._identities[question]

    def _found_identity(self, node: ast.AST | None, scope: Scope, depth: int) -> object:
        if isinstance(node, ast.BinOp):
            return self._computed(node, scope, depth)
        if isinstance(node, ast.Attribute) and node.attr == OF_LOADER and self._is_loader(node.value, scope):
            return OF_LOADER
        if isinstance(node, ast.Call) and len(node.args) == 1 and self.analysis.called(node, scope) & WHOLE_NUMBERS:
            return self._identity(node.args[0], scope, depth)
        is_entry = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
        if not isinstance(node, (ast.Name, ast.Attribute)) and not is_entry:
            return None
        values = self.analysis.evaluate(node, scope)  # type: ignore[arg-type]
        if len(values) == 1:
            (value,) = values
            of = value if isinstance(value, Display) and isinstance(value.node, ast.BinOp) and depth else None
            computed = self._computed(of.node, of.scope, depth - 1) if of is not None else None  # type: ignore[arg-type]
            return None if is_entry and isinstance(value, Item) and not value.key else computed or values
        if isinstance(node, ast.Subscript):
            return self._entry(node, scope, depth)
        bindings = bindings_of(self.analysis, node, scope)  # type: ignore[arg-type]  # set once, or by the callers
        if not bindings and not values and isinstance(node, ast.Attribute):
            return self._entry(node, scope, depth)
        if len(bindings) != 1 or bindings[0][0].kind not in ("value", "parameter"):
            return None
        return (self._of_callers(*bindings[0], depth, self._identity) if depth else None) or bindings[0]

    def _holder(self, node: ast.expr, scope: Scope, depth: int) -> object:
        """Return the variable that holds settings, also one that is set again, as by a function that adds defaults."""
        bindings = bindings_of(self.analysis, node, scope) if isinstance(node, ast.Name) else []
        kinds = {binding.kind for binding, _ in bindings}
        if len(bindings) > 1 and kinds == {"value"} and not any(binding.path for binding, _ in bindings):
            return bindings[0][1], bindings[0][0].name
        if len(bindings) == 1 and kinds == {"parameter"} and depth:
            return self._of_callers(*bindings[0], depth, self._holder) or bindings[0]
        return self._identity(node, scope, 1)

    def _is_loader(self, node: ast.expr, scope: Scope) -> bool:
        if builders_of_value(self.analysis, node, scope) & self.loaders:
            return True
        held = loaders_in(self.analysis, node, scope)
        return any(variable in self.variables for place in held for variable in variables_of(self.analysis, *place))

    def _of_callers(self, binding: Binding, scope: Scope, depth: int, identity: Identity) -> object:
        """Return the size that all callers give for a parameter, whatever its default is; None if they differ."""
        given = given_for(self.analysis, binding.name, scope, ()) if binding.kind == "parameter" else ()
        run = [place for place in given if self._is_run(*place[:2])]
        sizes = {None if keys else identity(value, where, depth - 1) for value, where, keys in run}
        return sizes.pop() if len(sizes) == 1 else None

    def _is_run(self, node: ast.expr, scope: Scope) -> bool:
        return scope in known_scopes(self.analysis) and not is_under_main_of_another(self.analysis, scope, node)

    def _computed(self, node: ast.BinOp, scope: Scope, depth: int) -> object:
        """Return what is computed of settings and numbers, as `batch // parts`, None where one of them is not known."""
        if not isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv)) or not depth:
            return None
        parts = [
            part.value if isinstance(part, ast.Constant) else self._identity(part, scope, depth - 1)
            for part in (node.left, node.right)
        ]
        is_number = isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
        return None if None in parts or is_number else ("*" if isinstance(node.op, ast.Mult) else "/", *parts)

    def _entry(self, node: ast.Subscript | ast.Attribute, scope: Scope, depth: int) -> object:
        """Return the entry of a variable that holds settings: config["batch"], config.batch."""
        holder = self._holder(node.value, scope, depth)
        key = node.attr if isinstance(node, ast.Attribute) else getattr(node.slice, "value", None)
        return None if holder is None else ("entry", holder, key)


def _factors(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*_factors(node.left), *_factors(node.right)]
    return [node]

"""The loaders that an iterated expression draws from, seen through everything that hands on their batches."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from functools import partial

from retrofit.analysis.calls import returns_of
from retrofit.analysis.flow.sources import Origin, closure, sources
from retrofit.analysis.memory import answered_once
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.fields import given_to_field
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, Item, LocalClass, Result, Value, Values
from retrofit.analysis.values.mapped import is_applied
from retrofit.analysis.values.views import Place, viewed
from retrofit.training.torch_api.data import (
    COMBINES,
    ENDLESS,
    LOADERS,
    LOOKS_LIKE_LOADER,
    NUMBERS,
    SAME_ELEMENTS,
    TAKES_FUNCTION,
)
from retrofit.training.torch_api.launch import HOLDS_ATTRIBUTES
from retrofit.training.torch_api.runtime import TRAINING_SHARES

from .batches import handed_on

DISPLAYS = (ast.List, ast.Tuple, ast.Dict, ast.ListComp, ast.GeneratorExp, ast.DictComp)
SEEN_THROUGH = SAME_ELEMENTS | ENDLESS | COMBINES | TAKES_FUNCTION


def loaders_in(
    analysis: Analysis, node: ast.expr, scope: Scope, leave_out: Collection[ast.AST] = frozenset()
) -> list[Place]:
    """Return the loaders in an iterated expression: inside enumerate, zip, a progress bar, a generator of the project.

    Each with its scope, and as it is named where it is still the loader itself: `loader` of `bar = tqdm(loader)`.
    What calls in `leave_out` give for a parameter does not count, nor do values in it.
    """
    return list(dict.fromkeys(_Search(analysis, leave_out).of(Origin(node, scope))))


class _Search:
    def __init__(self, analysis: Analysis, leave_out: Collection[ast.AST] = frozenset()) -> None:
        self.analysis = analysis
        self.leave_out = leave_out
        self.seen: set[Origin] = set()
        self._returned: dict[ast.AST, list[Place]] = {}  # by functions: the loaders in what they return
        by_calls: dict[frozenset[ast.AST], dict[Origin, list[Origin]]] = analysis.fact("given to loops", dict)
        self._given = by_calls.setdefault(frozenset(leave_out), {})
        self._views: dict[Origin, bool] = analysis.fact("views of loaders", dict)

    def of(self, origin: Origin) -> Iterator[Place]:
        if origin in self.seen:
            return
        self.seen.add(origin)
        node = origin.node
        if isinstance(node, ast.Call):
            yield from self._of_call(node, origin)
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
            yield from self._of_variable(node, origin)
        elif isinstance(node, (ast.GeneratorExp, ast.ListComp)) and not origin.keys:
            yield from self.of(origin.to(node.generators[0].iter))
        else:
            for part in self._sources(origin):
                yield from self.of(part)

    def _sources(self, origin: Origin) -> list[Origin]:
        found = sources(self.analysis, origin)
        return [part for part in found if not isinstance(part.node, ast.Constant) and not self._is_left_out(part)]

    def _is_left_out(self, origin: Origin) -> bool:
        parents = origin.scope.source.parents
        outer = parents.get(origin.node)
        if origin.node in self.leave_out:
            return True
        return (parents.get(outer) if isinstance(outer, ast.keyword) else outer) in self.leave_out

    def _of_call(self, node: ast.Call, origin: Origin) -> Iterator[Place]:
        scope = origin.scope
        if is_applied(node):
            return  # what has no text cannot be changed; a variable that holds it was found before
        if builders_of_value(self.analysis, node, scope, through=False):
            if not origin.keys:  # else what is iterated is a batch of it, or a part of one
                yield node, scope
            return
        if origin.keys:
            for part in self._sources(origin):
                yield from self.of(part)
            return
        if self._is_one_batch(node, scope):  # what is iterated are its samples
            return
        inner = [place for part in self._parts(node, scope) for place in self.of(Origin(*part))]
        if inner:
            yield from inner
            yield from self._combined(node, scope)
        elif builders_of_value(self.analysis, node, scope):
            yield node, scope
        else:
            yield from self._of_returned(node, scope)

    def _of_returned(self, node: ast.Call, scope: Scope) -> Iterator[Place]:
        """Yield a call that returns what hands on a loader: `return cycle(DataLoader(...))`.

        The loader itself where nothing else calls the function: of one that makes several, each is of its own call.
        """
        functions = self.analysis.functions_called(node, scope)
        for function in functions:
            if function.node not in self._returned:
                returned = [Origin(value, function.scope) for value in returns_of(function.node)]
                self._returned[function.node] = [place for value in returned for place in self.of(value)]
        inner = [place for function in functions for place in self._returned[function.node]]
        is_only_call = all(len(self.analysis.callers(function.node)) == 1 for function in functions)
        yield from inner if is_only_call else [(node, scope)] if inner else []

    def _is_one_batch(self, node: ast.Call, scope: Scope) -> bool:
        """Return whether a call gives a single batch of a loader: `next(iter(loader))`."""
        if "next" not in self.analysis.called(node, scope) or not node.args:
            return False
        drawn = node.args[0]
        if isinstance(drawn, ast.Call) and "iter" in self.analysis.called(drawn, scope) and drawn.args:
            drawn = drawn.args[0]
        return bool(builders_of_value(self.analysis, drawn, scope))

    def _parts(self, node: ast.Call, scope: Scope) -> list[Place]:
        """Return what a call can hand on: of the project's generators what they go through, else all its arguments."""
        only = handed_on(self.analysis, node, scope)
        if only is not None:
            return [(only, scope)]
        if self.analysis.called(node, scope) & NUMBERS:
            return []  # range(len(loader))
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        return viewed(self.analysis, node, scope) or [(part, scope) for part in given]

    def _combined(self, node: ast.Call, scope: Scope) -> Iterator[Place]:
        """Yield what may be a loader that was made out of sight among those that a call draws from in turn."""
        if self.analysis.called(node, scope) & COMBINES:
            yield from ((part, scope) for part in node.args if may_be_loader(self.analysis, part, scope))

    def _of_variable(self, node: ast.Name | ast.Attribute | ast.Subscript, origin: Origin) -> Iterator[Place]:
        analysis, scope = self.analysis, origin.scope
        is_loader = not origin.keys and bool(builders_of_value(analysis, node, scope))
        given = [*self._of_field(node, origin), *self._given_by(origin)]
        if self._is_parameter(node, scope):
            own = [part for part in given if part.scope is scope and self.is_view(part)]
            views = [*own, *(part for part in given if self._holds_view(part))]
        else:
            views = [part for part in given if self.is_view(part)]
        if is_loader and not views:
            yield node, scope  # type: ignore[misc]
        elif is_loader:
            made = [part for part in given if part not in views and self._makes_loader(part)]
            for part in given:
                yield from self.of(part) if part not in made else ()
            if made:
                yield node, scope  # type: ignore[misc]
        else:
            for part in given:
                yield from self.of(part)

    def _makes_loader(self, origin: Origin) -> bool:
        node = origin.node
        return isinstance(node, ast.expr) and bool(builders_of_value(self.analysis, node, origin.scope))

    def _given_by(self, origin: Origin) -> list[Origin]:
        """Return what a variable can have its value from; of an entry of containers, what is put there."""
        if origin not in self._given:
            self._given[origin] = self._find_given(origin)
        return self._given[origin]

    def _find_given(self, origin: Origin) -> list[Origin]:
        def step(part: Origin) -> list[Origin]:
            is_place = isinstance(part.node, (ast.Name, ast.Attribute, ast.Subscript, *DISPLAYS))
            is_entry = bool(part.keys) and (is_place or (isinstance(part.node, ast.Call) and not self.is_view(part)))
            return self._sources(part) if part == origin or is_entry else []

        found = [part for part in closure([origin], step) if part != origin]
        return [part for part in found if not step(part)]

    def _of_field(self, node: ast.expr, origin: Origin) -> Iterator[Origin]:
        """Yield what is given for a field of a dataclass or a named tuple."""
        if isinstance(node, ast.Attribute) and not origin.keys:
            for part in closure([origin.to(node.value)], self._sources):
                if isinstance(part.node, ast.Call) and not part.keys:
                    place = given_to_field(self.analysis, part.node, part.scope, node.attr)
                    yield from [Origin(*place)] if place is not None else []
                    if self.analysis.called(part.node, part.scope) & HOLDS_ATTRIBUTES:
                        yield from (part.to(k.value) for k in part.node.keywords if k.arg == node.attr)

    def is_view(self, origin: Origin) -> bool:
        """Return whether an expression is not a loader itself, but hands on what one gives."""
        if origin not in self._views:
            self._views[origin] = self._is_view(origin)
        return self._views[origin]

    def _is_view(self, origin: Origin) -> bool:
        node = origin.node
        if isinstance(node, ast.IfExp):
            return any(self.is_view(origin.to(part)) for part in (node.body, node.orelse))
        if not isinstance(node, ast.Call):
            return False
        if origin.keys:
            return any(builders_of_value(self.analysis, part, origin.scope) for part in node.args)
        if self.analysis.called(node, origin.scope) & SEEN_THROUGH:
            return True
        return bool(viewed(self.analysis, node, origin.scope)) and not builders_of_value(
            self.analysis, node, origin.scope, through=False
        )

    def _holds_view(self, origin: Origin) -> bool:
        """Return whether a variable is given that holds an iterator: `batches` of `batches = iter(loader)`."""
        is_place = isinstance(origin.node, (ast.Name, ast.Attribute)) and not origin.keys
        return is_place and any(self.is_view(part) for part in self._given_by(origin))

    @staticmethod
    def _is_parameter(node: ast.expr, scope: Scope) -> bool:
        found = scope.find(node.id) if isinstance(node, ast.Name) else None
        return found is not None and any(binding.kind == "parameter" for binding in found[1])


def is_view(analysis: Analysis, node: ast.expr | None, scope: Scope) -> bool:
    """Return whether an expression is not a loader, but hands on what one gives: tqdm(loader), Prefetch(loader)."""
    return node is not None and _Search(analysis).is_view(Origin(node, scope))


def is_loader(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Result):
        return value.builder in LOADERS or value.builder in TRAINING_SHARES
    return isinstance(value, Instance) and bool(analysis.classes.bases(value.scope) & LOADERS)


def may_be_loader(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an object was made out of sight, by something that is named as what makes loaders."""
    values = analysis.evaluate(node, scope)
    if any(isinstance(value, (Instance, LocalClass)) for value in values):
        return False
    made = {value.base if isinstance(value, Item) else value for value in values}
    names = {value.builder for value in made if isinstance(value, Result)}
    return any(LOOKS_LIKE_LOADER.search(".".join(name.split(".")[-2:])) for name in names)


def builders_of_value(analysis: Analysis, node: ast.expr, scope: Scope, through: bool = True) -> frozenset[ast.Call]:
    """Return the calls that can have made the loader that an expression is; without `through`, itself if it is one."""
    made = _loader_calls(analysis, analysis.evaluate(node, scope))
    return made if through else made & {node}  # type: ignore[operator]


@answered_once
def _loader_calls(analysis: Analysis, values: Values) -> frozenset[ast.Call]:
    """Return the calls that have made the loaders among some values, or what these were made from."""
    found = closure(values, partial(_sharded, analysis))
    loaders = [v for v in found if isinstance(v, (Result, Instance)) and is_loader(analysis, v)]
    return frozenset(loader.call for loader in loaders if loader.call is not None)


def _sharded(analysis: Analysis, value: Value) -> Iterator[Value]:
    """Yield what a loader of the runtime was made from."""
    if isinstance(value, Result) and value.builder in TRAINING_SHARES:
        yield from (inner for given in value.call.args[:1] for inner in analysis.evaluate(given, value.scope))

"""Values computed from a batch of the training: from its samples and targets, and from what a model returns."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from retrofit.analysis.calls import argument_for, is_method, last_name, returns_of
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope, own_nodes, parameters
from retrofit.analysis.values.containers import put_into
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Result

from ..model.models import Model
from ..optimizer.optimizers import is_module
from .loaders import TRAIN, Loader

BATCH = "batch"
GRADIENT = "gradient"  # what a model makes of a batch
CHOSEN = "chosen"  # elements of a batch that a test on it chooses
UNEVEN = "uneven"  # as many elements as a test on the batch chooses
COMPARING = {"eq", "ne", "gt", "lt", "ge", "le", "logical_and", "logical_or", "logical_not", "isin"}
CHOOSING = {"nonzero", "masked_select", "argwhere", "unique"}
NUMBERING = {"long", "int"}  # of a test: 0 or 1, which chooses nothing as an index
REDUCING = {"mean", "sum", "max", "min", "median", "prod", "norm", "item", "std", "var", "numel", "size", "any", "all"}
WITHOUT_GRADIENT = COMPARING | {
    "detach", "item", "argmax", "size", "numel", "nelement", "dim", "long", "bool", "int", "tolist", "numpy", "nonzero",
    "new_zeros", "new_ones", "new_full",
}  # fmt: skip
PLAIN = {"data", "shape", "dtype", "device", "ndim"}
MOST_STEPS = 300


class BatchValues:
    """Answers what an expression has of a batch."""

    def __init__(self, analysis: Analysis, loaders: list[Loader], models: list[Model]) -> None:
        self.analysis = analysis
        self.loops = {use.loop for loader in loaders for use in loader.uses if use.role == TRAIN}
        self.calls = {call.call for model in models for call in model.calls}
        self._known: dict[tuple[ast.AST, Scope, bool], frozenset[str]] = {}

    def sources_of(self, node: ast.expr, scope: Scope, stored: bool = False) -> frozenset[str]:
        """Return which of BATCH, GRADIENT and CHOSEN an expression is computed from.

        `stored`: also through lists and buffers that something of a batch was put into before.
        """
        if (node, scope, stored) not in self._known:
            search = _Search(self, stored)
            search.run(node, scope)
            self._known[node, scope, stored] = frozenset(search.found)
        return self._known[node, scope, stored]

    @cached_property
    def given_to_methods(self) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """What methods are given in statements of their own, by the name of their object: memory.push(x)."""
        found: dict[str, list[tuple[ast.expr, Scope]]] = defaultdict(list)
        for scope in self.analysis.scopes():
            for node in own_nodes(scope.node):
                call = node.value if isinstance(node, ast.Expr) else None
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                    found[last_name(call.func.value)] += [(part, scope) for part in call.args]
        return found

    def loops_around(self, node: ast.AST, scope: Scope) -> frozenset[str]:
        """Return what of a batch is gone through around a node: its samples, what a model makes of it."""
        found: set[str] = set()
        for place, where in self._places(node, scope):
            iterables = (part for outer in _around(place, where) for part in self._gone_through(outer))
            found.update(source for iterable in iterables for source in self.sources_of(iterable, where))
        return frozenset(found)

    def is_settled(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether every process comes to a node: no test on a batch decides about it."""
        for place, where in self._places(node, scope):
            tests = [o.test for o in _around(place, where) if isinstance(o, (ast.If, ast.IfExp, ast.While))]
            if any(self.sources_of(test, where) for test in tests if not _is_about_none(test)):
                return False
        return True

    def _gone_through(self, loop: ast.AST) -> list[ast.expr]:
        """Return what a loop, other than those over batches, or a comprehension goes through."""
        if isinstance(loop, ast.For) and loop not in self.loops:
            return [loop.iter]
        return [part.iter for part in loop.generators] if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else []

    def _places(self, node: ast.AST, scope: Scope) -> list[tuple[ast.AST, Scope]]:
        """Return a node with the calls of the function that it is in, of the functions that these are in, and so on."""
        found: dict[ast.AST, Scope] = {node: scope}
        waiting = [scope]
        while waiting and len(found) < MOST_STEPS:
            outer = waiting.pop().node
            for site in self.analysis.callers(outer) if isinstance(outer, FUNCTIONS) else ():
                if site.call not in found:
                    found[site.call] = site.scope
                    waiting.append(site.scope)
        return list(found.items())


@dataclass(frozen=True)
class _Step:
    """An expression on the way.

    `learns`: its gradient counts. `is_index`: it chooses elements of something. `is_even`: what it chooses does not
    change how many elements the first expression has.
    """

    node: ast.expr
    scope: Scope
    learns: bool = True
    is_index: bool = False
    is_even: bool = False

    def to(self, node: ast.expr, scope: Scope | None = None, **changes: bool) -> _Step:
        return replace(self, node=node, scope=scope or self.scope, **changes)


class _Search:
    def __init__(self, values: BatchValues, stored: bool) -> None:
        self.values, self.stored = values, stored
        self.analysis = values.analysis
        self.found: set[str] = set()
        self.seen: set[_Step] = set()
        self.waiting: deque[_Step] = deque()

    def run(self, node: ast.expr, scope: Scope) -> None:
        self.waiting.append(_Step(node, scope))
        while self.waiting and len(self.seen) < MOST_STEPS:
            step = self.waiting.popleft()  # what is near first: the way may lead on into the model
            if step not in self.seen and not isinstance(step.node, ast.Constant):
                self.seen.add(step)
                self._look(step)

    def _look(self, step: _Step) -> None:
        node = step.node
        if self.stored and isinstance(node, (ast.Name, ast.Attribute)):
            self.waiting += [step.to(*place) for place in self.values.given_to_methods.get(last_name(node), [])]
        if isinstance(node, ast.Call):
            self._look_at_call(node, step)
        elif isinstance(node, ast.Name):
            self._look_at_name(node, step)
        elif isinstance(node, ast.Attribute):
            self._look_at_attribute(node, step)
        elif isinstance(node, ast.Subscript):
            # An index that is computed by choosing is uneven, whatever is made of its numbers on the way.
            is_even = step.is_even and not step.is_index
            self.waiting += [step.to(node.value), step.to(node.slice, learns=False, is_index=True, is_even=is_even)]
        else:
            is_test = isinstance(node, ast.Compare)
            if is_test and step.is_index:
                self._note_chosen(step)
            self.waiting += [step.to(part, learns=step.learns and not is_test) for part in _parts(node)]

    def _look_at_call(self, node: ast.Call, step: _Step) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name == "next" and isinstance(node.func, ast.Name):
            self.found.add(BATCH)
            return
        if step.learns and (node in self.values.calls or self._runs_module(node, step.scope)):
            self.found.add(GRADIENT)
        if name in CHOOSING or (name in COMPARING and step.is_index):
            self._note_chosen(step)
        if step.is_index and node not in self.values.calls:
            for function in self.analysis.functions_called(node, step.scope):
                self.waiting += [step.to(value, function.scope) for value in returns_of(function.node)]
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        parts = (*receiver, *node.args, *(keyword.value for keyword in node.keywords))
        learns = step.learns and name not in WITHOUT_GRADIENT
        is_even = step.is_even or (step.is_index and (name in NUMBERING or _is_choice_of_values(node, name)))
        is_even = is_even or name.endswith("loss") or (name in REDUCING and _is_of_all(node, step.scope, self.analysis))
        self.waiting += [step.to(part, learns=learns, is_even=is_even) for part in parts]

    def _note_chosen(self, step: _Step) -> None:
        self.found |= {CHOSEN} if step.is_even else {CHOSEN, UNEVEN}

    def _runs_module(self, node: ast.Call, scope: Scope) -> bool:
        values = self.analysis.evaluate(node.func, scope)
        return any(
            is_module(self.analysis, value) or (isinstance(value, Result) and value.maker.startswith("torch.nn."))
            for value in values
        )

    def _look_at_name(self, node: ast.Name, step: _Step) -> None:
        owner, bindings = step.scope.find(node.id) or (step.scope, [])
        if step.is_index:
            self.waiting += [step.to(value, owner) for _, value in put_into(node.id, owner)]
        for binding in bindings:
            if binding.kind == "item" and binding.node in self.values.loops:
                self.found |= set() if _is_number(binding) else {BATCH}
            elif isinstance(binding.node, ast.AugAssign):
                self.waiting.append(step.to(binding.node.value, owner))
            elif binding.kind == "parameter" and isinstance(owner.node, FUNCTIONS):
                names = parameters(owner.node)[1:] if is_method(owner) else parameters(owner.node)
                for site in self.analysis.callers(owner.node):
                    given = argument_for(site.call, names, binding.name)
                    self.waiting += [step.to(given, site.scope)] if given is not None else []
            elif binding.value is not None:
                self.waiting.append(step.to(binding.value, owner))

    def _look_at_attribute(self, node: ast.Attribute, step: _Step) -> None:
        owner = step.scope.enclosing_class()
        if owner is not None and isinstance(node.value, ast.Name) and node.value.id == "self":
            bindings = self.analysis.classes.attribute_bindings(owner, node.attr)
            self.waiting += [step.to(binding.value, where) for binding, where in bindings if binding.value is not None]
        else:
            self.waiting.append(step.to(node.value, learns=step.learns and node.attr not in PLAIN))


def _is_choice_of_values(node: ast.Call, name: str) -> bool:
    """Return whether this is torch.where(test, one, other), which gives a value for each entry of the test."""
    return name == "where" and len(node.args) == (3 if _is_of_module(node) else 2)


def _is_of_module(node: ast.Call) -> bool:
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id in ("torch", "np", "numpy")


def _is_of_all(node: ast.Call, scope: Scope, analysis: Analysis) -> bool:
    """Return whether a reduction is over all elements: x.mean(), torch.mean(x)."""
    is_torch = isinstance(node.func, ast.Attribute) and "torch" in analysis.named(node.func.value, scope)
    return not node.keywords and len(node.args) == is_torch


def _is_number(binding: Binding) -> bool:
    """Return whether this counts batches: `i` of for i, batch in enumerate(loader)."""
    is_enumerated = isinstance(binding.value, ast.Call) and getattr(binding.value.func, "id", "") == "enumerate"
    return is_enumerated and binding.path == (0,)


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.expr):
            yield part
        elif isinstance(part, (ast.comprehension, ast.Slice)):
            yield from _parts(part)


def _around(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            return
        yield outer


def _is_about_none(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))

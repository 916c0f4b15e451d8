"""Values computed from a batch of the training: from its samples and targets, and from what a model returns."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import NamedTuple

from retrofit.analysis.calls import last_name, returns_of
from retrofit.analysis.flow.bindings import bindings_of, class_of_own
from retrofit.analysis.flow.calls.parameters import is_rest
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.keys import Keys
from retrofit.analysis.flow.operands import operands
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.sources import Origin, closure, origins, sources
from retrofit.analysis.flow.stored import literal_key, stored_in
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Binding, Scope, own_nodes, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Result, Value
from retrofit.training.model.modules import is_layer
from retrofit.training.torch_api.modules import GRAPH_LAYER_PACKAGES, PARAMETERS
from retrofit.training.torch_api.runtime import CHOSEN_MEAN
from retrofit.training.torch_api.tensors import (
    CHOOSES,
    COMPARISONS,
    DETACHES,
    INDICES,
    INTEGER_CASTS,
    MASK_CASTS,
    NEW,
    PLACES,
    READS,
    REDUCTIONS,
    RESHAPES,
    SAME_ENTRIES,
    SHAPE_ATTRIBUTES,
    SHAPE_METHODS,
)

from ..model.models import Model
from .batches import is_of_several
from .loaders import TRAIN, Loader

BATCH = "batch"
GRADIENT = "gradient"  # what a model makes of a batch
CHOSEN = "chosen"  # elements of a batch that a test on it chooses
UNEVEN = "uneven"  # as many elements as a test on the batch chooses
REDUCING = REDUCTIONS | SHAPE_METHODS | {"item"}
WITHOUT_GRADIENT = COMPARISONS | READS | DETACHES | INTEGER_CASTS | MASK_CASTS | SHAPE_METHODS | INDICES | NEW
PLAIN = SHAPE_ATTRIBUTES | {"data"}
SAME_VALUES = SAME_ENTRIES | INTEGER_CASTS | MASK_CASTS | RESHAPES


class BatchValues:
    """Answers what an expression has of a batch."""

    def __init__(
        self,
        analysis: Analysis,
        loaders: list[Loader],
        models: list[Model],
        draws: Collection[ast.AST] = (),
        steps: Collection[ast.AST] = (),
    ) -> None:
        self.analysis = analysis
        self.draws = draws  # batches without a loader
        uses = [use for loader in loaders for use in loader.uses if use.role == TRAIN]
        self.loops = {use.loop for use in uses}
        self.draws_one = {use.call for use in uses if use.call is not None}  # each gives one batch
        self._gives = {use.loop for use in uses if use.call is None}  # loops that go through batches
        self.steps = self.loops.union(steps)  # over batches or their parts: each round has a backward pass
        self.calls = {call.call for model in models for call in model.calls}
        self._known: dict[tuple[ast.AST, Scope, bool], frozenset[str]] = {}
        self._chooses: dict[tuple[ast.AST, Scope], bool] = {}
        self._chosen_rows: dict[tuple[ast.AST, Scope], bool] = {}
        self._plain, self._stored = _Search(self), _Search(self, stored=True)
        self._through_returned = _Search(self, follows_returned=True)
        self._without_choices = _Search(self, notes_choices=False)

    def sources_of(self, node: ast.expr, scope: Scope, stored: bool = False) -> frozenset[str]:
        """Return which of BATCH, GRADIENT and CHOSEN an expression is computed from.

        `stored`: also through lists and buffers that something of a batch was put into before.
        """
        if (node, scope, stored) not in self._known:
            search = self._stored if stored else self._plain
            self._known[node, scope, stored] = frozenset(search.run(node, scope))
        return self._known[node, scope, stored]

    def has_chosen_rows(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether the batch chooses how many elements something has, in functions that return it, too."""
        if (node, scope) not in self._chosen_rows:
            self._chosen_rows[node, scope] = CHOSEN in self._through_returned.run(node, scope)
        return self._chosen_rows[node, scope]

    def chooses(self, node: ast.Subscript, scope: Scope) -> bool:
        """Return whether something that a batch holds chooses entries of another part of it: labels[mask].

        It can be a mask, so each batch may choose another number of them.
        """
        if (node, scope) not in self._chooses:
            index = _only_index(node.slice)
            is_given = index is not None and self._is_given(index, scope)
            self._chooses[node, scope] = is_given and self._is_of_batch(node.value, scope)
        return self._chooses[node, scope]

    def _is_of_batch(self, node: ast.expr, scope: Scope) -> bool:
        return bool(self._without_choices.run(node, scope) & {BATCH, GRADIENT})

    def _is_given(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression can be a part of a batch as the loader gives it, in another shape or type."""

        def through(origin: Origin) -> list[Origin] | None:
            part = origin.node
            method = part.func if isinstance(part, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in SAME_VALUES:
                return [origin.to(method.value)]
            if _is_combined_mask(part):
                return [origin.to(inner, keys=()) for inner in operands(part)]  # type: ignore[arg-type]
            is_other = isinstance(part, ast.Attribute) and class_of_own(part, origin.scope) is None
            if is_other and part.attr not in PLAIN and not sources(self.analysis, origin):  # type: ignore[union-attr]
                return [origin.to(part.value, keys=())]  # type: ignore[union-attr]  # graphs.train_mask
            return None

        steps = origins(self.analysis, [Origin(node, scope)], through)
        return any(self.is_drawn(step.node, step.scope) for step in steps)

    def is_drawn(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether this is a batch, or a part of one, where it is drawn: by a loop over them, or by next()."""
        if isinstance(node, ast.Call):
            return draws_next(node)
        bindings = bindings_of(self.analysis, node, scope) if isinstance(node, ast.Name) else []
        return any(self.is_batch(binding) for binding, _ in bindings)

    def is_batch(self, binding: Binding) -> bool:
        """Return whether a name is what a loop over the batches draws, or a part of it: not their number."""
        return binding.node in self._gives and not _is_number(binding)

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
        for place, where in call_chains(self.analysis, node, scope):
            iterables = (part for outer in _around(place, where) for part in self._gone_through(outer))
            of_samples = (part for part in iterables if not self._is_written_out(part, where))
            found.update(source for iterable in of_samples for source in self.sources_of(iterable, where))
        return frozenset(found)

    def is_settled(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether every process comes to a node: no test on a batch decides about it."""
        for place, where in call_chains(self.analysis, node, scope):
            tests = [o.test for o in _around(place, where) if isinstance(o, (ast.If, ast.IfExp, ast.While))]
            if any(self.sources_of(test, where) for test in tests if not _is_about_none(test)):
                return False
        return True

    def _gone_through(self, loop: ast.AST) -> list[ast.expr]:
        """Return what a loop, other than those of steps, or a comprehension goes through."""
        if isinstance(loop, ast.For) and loop not in self.steps:
            return [loop.iter]
        return [part.iter for part in loop.generators] if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else []

    def _is_written_out(self, iterable: ast.expr, scope: Scope) -> bool:
        """Return whether the entries are those of a list in the source, and no samples: for part in (left, right).

        Or a batch of each of several loaders.
        """
        if isinstance(iterable, ast.Call):
            name = last_name(iterable)
            is_method = name in ("values", "items") and isinstance(iterable.func, ast.Attribute) and not iterable.args
            parts = [iterable.func.value] if is_method else iterable.args if name in ("enumerate", "zip") else []  # type: ignore[attr-defined]
            return bool(parts) and all(self._is_written_out(part, scope) for part in parts)
        bindings = bindings_of(self.analysis, iterable, scope) if isinstance(iterable, ast.Name) else []
        if bindings and all(is_of_several(self.analysis, *place) for place in bindings):
            return True
        values = self.analysis.evaluate(iterable, scope)
        return bool(values) and all(isinstance(value, Display) and _has_entries(value.node) for value in values)


class _Step(NamedTuple):
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
        return self._replace(node=node, scope=scope or self.scope, **changes)


class _Search:
    """The search for what expressions are computed from; `notes_choices`: also whether the batch chooses in them.

    `follows_returned`: through what functions return, and what is put into lists, as it always does for an index.
    Searches from different expressions meet: what a step leads to, and what it is, is found once for all of them.
    """

    def __init__(
        self, values: BatchValues, stored: bool = False, notes_choices: bool = True, follows_returned: bool = False
    ) -> None:
        self.values, self.stored, self.notes_choices = values, stored, notes_choices
        self.follows_returned = follows_returned
        self.analysis = values.analysis
        self._next: dict[_Step, list[_Step]] = {}
        self._notes: defaultdict[_Step, set[str]] = defaultdict(set)

    def run(self, node: ast.expr, scope: Scope) -> set[str]:
        steps = list(closure([_Step(node, scope)], self._after))
        return set().union(*(self._notes[step] for step in steps if step in self._notes))

    def _after(self, step: _Step) -> list[_Step]:
        if step not in self._next:
            self._next[step] = self._look(step)
        return self._next[step]

    def _look(self, step: _Step) -> list[_Step]:
        """Note what an expression is, and return those that it is computed from."""
        node = step.node
        if node in self.values.draws:
            self._notes[step].add(BATCH)
            return []
        if isinstance(node, ast.Call):
            return self._look_at_call(node, step)
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self._look_at_variable(node, step)
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Name) and _entries_of(node.value, step.scope):
                given = sources(self.analysis, Origin(node.value, step.scope, (literal_key(node.slice),)))
                return [step.to(*origin[:2]) for origin in given]  # type: ignore[arg-type]
            # An index that is computed by choosing is uneven, whatever is made of its numbers on the way.
            is_even = step.is_even and not step.is_index
            if self.notes_choices and self.values.chooses(node, step.scope):
                self._note_chosen(step)
            return [step.to(node.value), step.to(node.slice, learns=False, is_index=True, is_even=is_even)]
        if isinstance(node, ast.Lambda):  # a function, and not what it gives for its parameters
            names = (part for part in walk(node.body) if isinstance(part, ast.Name))
            return [step.to(name) for name in names if name.id not in parameters(node)]
        is_test = isinstance(node, ast.Compare)
        if step.is_index and (is_test or _is_combined_mask(node)):
            self._note_chosen(step)
        return [step.to(part, learns=step.learns and not is_test) for part in operands(node)]

    def _look_at_call(self, node: ast.Call, step: _Step) -> list[_Step]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if draws_next(node):
            self._notes[step].add(BATCH)
            return []
        if step.learns and (node in self.values.calls or self._runs_module(node, step.scope)):
            self._notes[step].add(GRADIENT)
        if name in CHOOSES or gives_places(node) or (name in COMPARISONS and step.is_index):
            self._note_chosen(step)
        returned = (step.is_index or self.follows_returned) and node not in self.values.calls
        functions = self.analysis.functions_called(node, step.scope) if returned else []
        found = [step.to(value, function.scope) for function in functions for value in returns_of(function.node)]
        receiver = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        parts = (*receiver, *node.args, *(keyword.value for keyword in node.keywords))
        learns = step.learns and name not in WITHOUT_GRADIENT
        is_even = step.is_even or (step.is_index and (name in INTEGER_CASTS or _is_choice_of_values(node, name)))
        is_even = is_even or name.endswith("loss") or (name in REDUCING and _is_of_all(node, step.scope, self.analysis))
        is_even = is_even or CHOSEN_MEAN in self.analysis.called(node, step.scope)
        return found + [step.to(part, learns=learns, is_even=is_even) for part in parts]

    def _note_chosen(self, step: _Step) -> None:
        self._notes[step] |= {CHOSEN} if step.is_even else {CHOSEN, UNEVEN}

    def _runs_module(self, node: ast.Call, scope: Scope) -> bool:
        run = self.analysis.evaluate(node.func, scope)
        return any(is_layer(self.analysis, value) or _is_graph_layer(value) for value in run)

    def _look_at_variable(self, node: ast.Name | ast.Attribute, step: _Step) -> list[_Step]:
        """Return what a variable is set to, and what is put into the list that it holds where that counts."""
        scope = step.scope
        drawn = [b for b, _ in bindings_of(self.analysis, node, scope) if b.node in self.values.loops]
        if drawn and isinstance(node, ast.Name):  # not where it is read before the loop
            live = live_bindings(node, scope)[1]
            drawn = [binding for binding in drawn if binding in live]
        if any(self.values.is_batch(binding) for binding in drawn):
            self._notes[step].add(BATCH)
        found = list(self.values.given_to_methods.get(last_name(node), [])) if self.stored else []
        if step.is_index or self.follows_returned:
            found += [(stored.value, stored.scope) for stored in stored_in(self.analysis, node, scope)]
        made = list(sources(self.analysis, Origin(node, scope, _entries_of(node, scope))))
        loaders = {binding.value for binding in drawn}
        found += [(origin.node, origin.scope) for origin in made if origin.node not in loaders]  # type: ignore[misc]
        if isinstance(node, ast.Attribute) and class_of_own(node, scope) is None:
            return [step.to(node.value, learns=step.learns and node.attr not in PLAIN), *(step.to(*p) for p in found)]
        return [step.to(*place) for place in found]


def _is_graph_layer(value: Value) -> bool:
    return isinstance(value, Result) and value.builder.startswith(GRAPH_LAYER_PACKAGES)


def _entries_of(node: ast.Name | ast.Attribute, scope: Scope) -> Keys:
    """Return the keys of any entry, for what holds all arguments: `inputs` of def set_input(self, *inputs)."""
    owner = live_bindings(node, scope)[0] if isinstance(node, ast.Name) else None
    return (None,) if owner is not None and is_rest(node.id, owner) else ()  # type: ignore[union-attr]


def _only_index(index: ast.expr) -> ast.expr | None:
    """Return what chooses along one axis, where the other axes are taken whole: `mask` of x[mask], x[:, mask]."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    chosen = [part for part in parts if not isinstance(part, (ast.Slice, ast.Constant))]
    return chosen[0] if len(chosen) == 1 and not isinstance(chosen[0], ast.Starred) else None


def _is_combined_mask(node: ast.AST) -> bool:
    """Return whether this is a mask that is made of others: ~mask, seen & valid."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Invert)
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr))


def draws_next(node: ast.Call) -> bool:
    """Return whether a call can draw a batch: next(batches), and not next(model.parameters())."""
    is_next = isinstance(node.func, ast.Name) and node.func.id == "next" and bool(node.args)
    return is_next and last_name(node.args[0]) not in PARAMETERS


def gives_places(node: ast.Call) -> bool:
    """Return whether a call gives the places at which something holds: torch.nonzero(mask), np.where(mask)."""
    name = last_name(node)
    return name in PLACES or (name == "where" and len(node.args) == 1 and not node.keywords)


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


def _around(node: ast.AST, scope: Scope) -> Iterator[ast.AST]:
    for outer in scope.source.ancestors(node):
        if outer is scope.node:
            return
        yield outer


def _has_entries(node: ast.AST) -> bool:
    return bool(node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", []))


def _is_about_none(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.Is, ast.IsNot))

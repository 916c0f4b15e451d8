"""Containers: dicts, lists, iterators and what calls put into them, take out of them or make of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from ..python_api import (
    ADDS_ALL,
    ADDS_ONE,
    AS_CONTAINERS,
    AS_DICT,
    ATTRIBUTES,
    CONTAINERS,
    EMPTIES,
    LISTS_VARIABLES,
    MAPPINGS,
    SCALARS,
    TAKES,
    VARS,
)
from ..scopes import Scope
from ..values.attribute_names import is_taken_by_text
from ..values.kinds import External, LocalClass, LocalFunction
from .by_text import attribute_by_text
from .objects import next_of
from .state import NONE, Cell, Flow, joined, mixed

if TYPE_CHECKING:
    from .interpreter import Interpreter

ADDS = ADDS_ONE | ADDS_ALL


class Containers:
    """Carries out the calls of containers in the running frame of an interpreter."""

    def __init__(self, run: Interpreter) -> None:
        self.run = run

    def handed_on(self, node: ast.Call, given: list[Flow]) -> Flow | None:
        """Return what an iterator or a container made from others holds; None for any other call."""
        run = self.run
        names = run.analysis.called(node, run.scope)
        if not given and names & (LISTS_VARIABLES | {VARS}):
            return self._variables(node, run.scope.module if "globals" in names else run.scope)
        if not given and not names & CONTAINERS:
            return None
        if VARS in names and given and given[0].cells:
            return given[0]
        if names & AS_CONTAINERS and given[0].cells:
            return self._copied(node, names, given[:1])
        if is_taken_by_text(node) and given[0].cells:
            methods = run.functions.by_text(node)
            return methods if methods.cells else attribute_by_text(run, node, given[0])
        if names & {"enumerate", "zip"}:
            inner = [run.turn(part, flow) for part, flow in zip(node.args, given)]
            parts = Flow(parts=(NONE, inner[0]) if "enumerate" in names else tuple(inner))
            is_source = any(cell.is_source for flow in given for cell in flow.cells)
            if is_source or any(flow.cells or flow.parts for flow in given):
                cell = run.new_cell(node, is_source=is_source)
                run.memory.state[cell, None] = parts
                return Flow(cells=frozenset([cell]))
            return None
        if names & {"next"}:
            own = next_of(run, node, given[0], is_loop=False)
            element = own if own is not None else run.turn(node.args[0], given[0])
            return element if element.differs or element.parts or element.cells else None
        if names & {"map"} and len(given) == 2:
            return self._mapped(node, given[1])
        if given and run.domain.hands_on(node, run.scope) and given[0].cells:
            return given[0]
        return self._copied(node, names, given) if names & CONTAINERS else None

    def _variables(self, node: ast.Call, scope: Scope) -> Flow:
        """Return a dict of what the variables of a scope hold: `show(locals())`, `text.format(**vars())`."""
        cells = frozenset([self.run.new_cell(node)])
        for name, held in self.run.memory.state.held_by([scope]):
            self.run.memory.put(cells, name, held)
        return Flow(cells=cells)

    def _mapped(self, node: ast.Call, flow: Flow) -> Flow | None:
        """Return what a function of the program makes of each entry: map(lambda part: part.copy(), batch)."""
        functions = self.run.analysis.evaluate(node.args[0], self.run.scope)
        known = [function for function in functions if isinstance(function, LocalFunction)]
        if len(known) == 1 and flow.cells and not any(cell.is_source for cell in flow.cells):
            entry = self.run.turn(node.args[1], flow)
            cell = self.run.new_cell(node)
            self.run.memory.state[cell, None] = self.run.calls.run_function(node.func, known[0], NONE, [entry], [])
            return Flow(cells=frozenset([cell]))
        if len(known) != 1 or flow.cells or not (flow.parts or flow.differs):
            return None
        if flow.parts:
            return Flow(
                parts=tuple(self.run.calls.run_function(node.func, known[0], NONE, [part], []) for part in flow.parts)
            )
        entry = self.run.domain.item(flow, ast.Constant("0"), NONE)
        return self.run.calls.run_function(node.func, known[0], NONE, [entry], [])

    def _copied(self, node: ast.Call, names: set[str], given: list[Flow]) -> Flow:
        """Return a new container with what another one holds: dict(table), OrderedDict(pairs), defaultdict(list)."""
        run, cells = self.run, frozenset([self.run.new_cell(node)])
        if names & {"collections.defaultdict"}:
            made = self._default(node)
            if made is not None:
                run.memory.put(cells, None, made)
            return Flow(cells=cells)
        named = [(keyword.arg, run.expressions.of(keyword.value)) for keyword in node.keywords]
        self._put_all(cells, given, named, bool(names & MAPPINGS))
        whole = [replace(flow, cells=frozenset(), parts=()) for flow in given if flow.differs]
        return whole[0] if whole else Flow(cells=cells)

    def fill_new(
        self, cells: frozenset[Cell], node: ast.Call, given: list[Flow], named: list[Flow], are_pairs: bool
    ) -> None:
        """Let objects of a class that is derived from a container hold what its constructor is given."""
        self._put_all(cells, given, [(k.arg, flow) for k, flow in zip(node.keywords, named)], are_pairs)
        for flow in given:
            if flow.differs:
                self.run.memory.put(cells, None, replace(flow, cells=frozenset(), parts=()))

    def _put_all(
        self, cells: frozenset[Cell], given: list[Flow], named: list[tuple[str | None, Flow]], are_pairs: bool
    ) -> None:
        """Put in what others hold, entries by name, and what `**others` holds; `are_pairs`: of keys and values."""
        memory = self.run.memory
        for flow in [*given, *(flow for name, flow in named if name is None)]:
            for key, held in memory.state.held_by(flow.cells):
                memory.put(cells, key, held.parts[1] if are_pairs and len(held.parts) == 2 else held)
            for part in flow.parts:
                memory.put(cells, None, part)
        for name, flow in named:
            memory.put(cells, name, flow)

    def extend(self, cells: frozenset[Cell], added: Flow) -> None:
        """Put the objects that one list or tuple holds into others."""
        entries = [held for _, held in self.run.memory.state.held_by(added.cells)]
        for held in (*entries, *added.parts):
            if held.cells and not held.differs:
                self.run.memory.put(cells, None, held)

    def of_class(self, kind: Scope) -> set[str]:
        """Return the containers that a class of the project is derived from."""
        return self.run.analysis.classes.bases(kind) & CONTAINERS

    def _base_constructor(self, node: ast.Call, given: list[Flow], named: list[Flow]) -> bool:
        """Carry out super().__init__(values) and dict.__init__(self, values) of a class derived from a container."""
        run = self.run
        owner = node.func.value  # type: ignore[attr-defined]
        is_super = isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "super"
        own = run.frame.receiver if is_super else given[0] if given and run.analysis.named(owner, run.scope) else NONE
        names = {cell: self.of_class(cell.kind) for cell in own.cells if cell.kind is not None}
        cells = frozenset(cell for cell, containers in names.items() if containers)
        spread = run.calls.spread(node, given)[0 if is_super else 1 :]
        self.fill_new(cells, node, spread, named, any(containers & MAPPINGS for containers in names.values()))
        return bool(cells)

    def _default(self, node: ast.Call) -> Flow | None:
        run = self.run
        if not node.args:
            return None
        for value in run.analysis.evaluate(node.args[0], run.scope):
            if isinstance(value, LocalClass):
                return Flow(cells=frozenset([run.new_cell(node.args[0], value.scope)]))
            if isinstance(value, LocalFunction):
                return self.run.calls.run_function(node, value, NONE, [], [])
            if isinstance(value, External) and value.name in SCALARS:
                return NONE
        return Flow(cells=frozenset([run.new_cell(node.args[0])]))

    def method(self, node: ast.Call, receiver: Flow, given: list[Flow], named: list[Flow]) -> Flow | None:
        """Carry out `list.append(x)`, `dict.update(...)`, `dict.items()`; None for other calls."""
        if not isinstance(node.func, ast.Attribute) or self.run.domain.written(node, self.run.scope):
            return None
        run, name, flows = self.run, node.func.attr, [*given, *named]
        if name == "__init__" and self._base_constructor(node, given, named):
            return NONE
        is_open = self._lists_attributes(node.func.value)
        cells = frozenset(cell for cell in receiver.cells if is_open or self.holds(cell))
        if name in EMPTIES and cells:
            for cell in cells:
                run.memory.state.drop(cell)
            return NONE
        if name in ADDS and (cells or isinstance(run.scope.source.parents.get(node), ast.Expr)):
            self._fill(node, cells, name, given, named)
            return run.expressions.element(receiver) if name == "setdefault" else NONE
        if name == AS_DICT and receiver.cells:
            return self._copied(node, set(), [receiver])
        if name not in TAKES or not cells:
            return None
        if name in ("values", "copy"):
            return Flow(cells=cells, kind=receiver.kind, roots=receiver.roots)
        if name == "items":
            pair = Flow(parts=(NONE, run.expressions.element(replace(receiver, cells=cells))))
            cell = run.new_cell(node)
            run.memory.state[cell, None] = pair
            return Flow(cells=frozenset([cell]))
        literal = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else None
        is_known = literal is not None and name in ("get", "pop") and not receiver.differs
        held = run.memory.field(cells, literal) if is_known else None
        found = held if held is not None else run.expressions.element(replace(receiver, cells=cells))
        return joined(found, flows[1]) if len(flows) > 1 else found

    def _lists_attributes(self, node: ast.expr) -> bool:
        """Return whether an expression is the dict of an object's attributes: vars(losses), losses.__dict__."""
        if isinstance(node, ast.Call):
            return VARS in self.run.analysis.called(node, self.run.scope)
        return isinstance(node, ast.Attribute) and node.attr == ATTRIBUTES

    def holds(self, cell: Cell) -> bool:
        """Return whether an object is a list or a dict, or of a class of the project that is derived from them."""
        return cell.kind is None or bool(self.of_class(cell.kind))

    def _fill(self, node: ast.Call, cells: frozenset[Cell], name: str, given: list[Flow], named: list[Flow]) -> None:
        run = self.run
        for keyword, flow in zip(node.keywords, named):
            run.memory.put(cells, keyword.arg, run.kept(cells, flow))
        for flow in given:
            inner = flow
            if name in ADDS_ALL and cells:
                for key, held in run.memory.state.held_by(flow.cells):
                    run.memory.put(cells, key, run.kept(cells, held))
                inner = flow if flow.differs else NONE
            if cells:
                run.memory.put(cells, None, run.kept(cells, inner))
        whole = mixed([run.expressions.whole(flow) for flow in (*given, *named)])
        if not cells and whole.differs:  # of an object that nothing is known about
            run.taint(node.func.value, whole)  # type: ignore[attr-defined]

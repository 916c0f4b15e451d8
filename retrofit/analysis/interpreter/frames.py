"""The call stack and the variables of an interpreted program."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from ..scopes import Scope
from ..values.attribute_names import ANY
from ..values.inference import Analysis
from .state import NONE, Cell, Flow, State, flattened, joined, joined_states, mixed


@dataclass(eq=False)
class Loop:
    """A loop that is being run, with the states in which it is left or begun again."""

    node: ast.AST
    left: list[State] = field(default_factory=list)
    again: list[State] = field(default_factory=list)
    given: dict[str, Flow] = field(default_factory=dict)  # what its iterable was made of, by name


@dataclass(eq=False)
class Frame:
    """A function that is being run, or a module."""

    scope: Scope
    calls: tuple[ast.AST, ...] = ()
    loops: list[Loop] = field(default_factory=list)
    returned: Flow | None = None
    ends: list[State] = field(default_factory=list)  # at its return statements
    unsure: int = 0  # tests around that differ between processes
    receiver: Flow = NONE
    given: dict[str, list[tuple[ast.expr, Flow]]] = field(default_factory=dict)  # by the parameter's name

    def give(self, flow: Flow) -> None:
        self.returned = flow if self.returned is None else joined(self.returned, flow)


class Memory:
    """The variables of all modules, running functions and objects."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.state = State()

    def load(self, name: str, scope: Scope) -> Flow:
        found = scope.find(name)
        return self.state.get((found[0] if found else scope, name)) or NONE

    def store(self, name: str, scope: Scope, flow: Flow) -> None:
        self.state[scope.outer_names.get(name, scope), name] = flow

    def field(self, cells: frozenset[Cell], key: object) -> Flow | None:
        """Return what objects hold under a key; None where none of them is known to hold anything there.

        What was put under a key that is not known can be under each that is not known to hold anything else.
        """
        places = ((cell, key if cell.is_source or (cell, key) in self.state else None) for cell in cells)
        found = [self.state[place] for place in places if place in self.state]
        if not found:
            return None
        flow = found[0]
        for other in found[1:]:
            flow = joined(flow, other)
        return flow

    def held(self, cells: frozenset[Cell]) -> list[Flow]:
        """Return all that objects hold."""
        return [flow for _, flow in self.state.held_by(cells)]

    def everything(self, cells: frozenset[Cell]) -> Flow:
        """Return what objects hold anywhere, also in objects that they hold."""
        seen: set[Cell] = set()
        waiting, flow = set(cells), NONE
        while waiting - seen and len(seen) < 50:
            cell = (waiting - seen).pop()
            seen.add(cell)
            if cell.is_source:
                continue
            entries = [held for _, held in self.state.held_by([cell])]
            for held in (part for entry in entries for part in flattened(entry)):
                flow = (
                    joined(flow, held) if not (flow.differs and held.differs and flow != held) else _either(flow, held)
                )
                waiting |= held.cells
        return flow

    def put(self, cells: frozenset[Cell], key: object, flow: Flow, pattern: str = ANY) -> None:
        """Set what objects hold under a key; of several objects each may be meant.

        `pattern`: what a key that is not known, None, can be.
        """
        for cell in cells:
            known = self.state.get((cell, key))
            is_sure = len(cells) == 1 and key is not None
            self.state[cell, key] = flow if is_sure or known is None else joined(known, flow)
            if key is None and flow.differs and isinstance(cell.node, (ast.Dict, ast.DictComp, ast.Call)):
                self._put_under_each(cell, flow, pattern)

    def _put_under_each(self, cell: Cell, flow: Flow, pattern: str) -> None:
        """Let each entry of a dict be what is put under a key that is not known: `for k in sums: sums[k] += x`."""
        for key, known in self.state.held_by([cell]):
            if isinstance(key, str) and re.fullmatch(pattern, key, re.DOTALL):
                self.state[cell, key] = joined(known, flow)

    def forget(self, scope: Scope) -> None:
        """Drop the variables of a function that is called again."""
        self.state.drop(scope)

    def meet(self, states: list[State]) -> None:
        if states:
            self.state = joined_states(states)


def _either(one: Flow, other: Flow) -> Flow:
    return mixed([one, other])

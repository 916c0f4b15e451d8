"""Abstract values: what is known of a variable at one point of a program, and how two such states are joined."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Union

from ..scopes import Scope

SAME = ""  # the same in every process
OTHER = "other"  # it differs, in a way that nothing is known about


@dataclass(frozen=True)
class Cell:
    """An object, known by where it was made: an instance of a class of the project, a list or a dict."""

    node: ast.AST
    calls: tuple[ast.AST, ...]  # the calls around its making, which tell apart what one function makes for several
    kind: Scope | None = None  # the class
    is_source: bool = False  # what is drawn from it differs between processes, it itself does not

    def __post_init__(self) -> None:  # a key of most dictionaries here
        object.__setattr__(self, "_hash", hash((self.node, self.calls, self.kind, self.is_source)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Cell):
            return self is other
        mine = self.node, self.calls, self.kind, self.is_source
        return hash(self) == hash(other) and mine == (other.node, other.calls, other.kind, other.is_source)


@dataclass(frozen=True)
class Root:
    """An expression through which a value that differs between processes leaves what is known about it."""

    node: ast.expr
    scope: Scope
    kind: str
    is_open: bool = False  # every process evaluates it, once per batch
    is_read: bool = False  # no gradient flows through it
    inputs: frozenset[Root] = field(default=frozenset(), compare=False)  # what it is computed from, of other places


@dataclass(frozen=True)
class Flow:
    """What is known of a value.

    `kind`: how it differs between processes, SAME where it does not. `place`: the expression that gave it in a loop
    over batches. `is_read`: no gradient flows through it any more. `is_term`: of the loss that is trained.
    `is_drawn`: it depends on random numbers, of which every process draws its own.
    """

    kind: str = SAME
    place: Root | None = None
    is_read: bool = False
    is_term: bool = False
    is_drawn: bool = False
    roots: frozenset[Root] = frozenset()
    cells: frozenset[Cell] = frozenset()
    parts: tuple[Flow, ...] = ()
    inputs: frozenset[Root] = field(default=frozenset(), compare=False)  # of a value that has no place of its own yet

    @property
    def differs(self) -> bool:
        return self.kind != SAME


NONE = Flow()
DRAWN = Flow(is_drawn=True)
Variable = tuple[Union[Scope, Cell], object]  # type: ignore[misc]
State = dict[Variable, Flow]  # type: ignore[misc]


def joined(one: Flow, other: Flow) -> Flow:
    """Return what is known of a value that is one or the other."""
    if one == other:
        return one
    return drawn_too(_joined(one, other), one, other)


def drawn_too(flow: Flow, *sources: Flow) -> Flow:
    """Return `flow`, marked as drawn if one of its sources is."""
    is_drawn = flow.is_drawn or any(source.is_drawn for source in sources)
    return flow if flow.is_drawn == is_drawn else replace(flow, is_drawn=is_drawn)


def _joined(one: Flow, other: Flow) -> Flow:
    parts: tuple[Flow, ...] = ()
    if len(one.parts) == len(other.parts):
        parts = tuple(joined(a, b) for a, b in zip(one.parts, other.parts))
    elif not (one.differs or other.differs):  # tuples of different lengths, or one and None
        parts = tuple(joined(a, b) for a, b in zip_longest(one.parts, other.parts, fillvalue=NONE))
    cells, roots = one.cells | other.cells, one.roots | other.roots
    if not one.differs or not other.differs:
        main = one if one.differs else other
        return replace(main, cells=cells, roots=roots, parts=parts)
    if one.kind == other.kind and one.place == other.place:
        return replace(one, cells=cells, roots=roots, parts=parts, is_term=one.is_term and other.is_term)
    if one.kind == other.kind and one.kind != OTHER and not (one.is_read or other.is_read):
        return replace(one, cells=cells, roots=roots, parts=parts, is_term=one.is_term and other.is_term)
    return Flow(OTHER, roots=roots | escaped(one) | escaped(other), cells=cells, parts=parts)


def closed(roots: Iterable[Root]) -> frozenset[Root]:
    """Return expressions as such that cannot be made the same in every process."""
    return frozenset(replace(root, is_open=False) for root in roots)


def escaped(flow: Flow) -> frozenset[Root]:
    """Return through which expressions a value that differs has come here."""
    if flow.kind == OTHER:
        return flow.roots
    return flow.roots | ({flow.place} if flow.place is not None else flow.inputs)


def mixed(flows: Iterable[Flow]) -> Flow:
    """Return what is computed from some values in a way that nothing is known about."""
    given = [flow for outer in flows for flow in flattened(outer)]
    is_drawn = any(flow.is_drawn for flow in given)
    if not any(flow.differs for flow in given):
        return DRAWN if is_drawn else NONE
    return Flow(OTHER, is_drawn=is_drawn, roots=frozenset().union(*(escaped(flow) for flow in given if flow.differs)))


def flattened(flow: Flow) -> Iterable[Flow]:
    yield flow
    for part in flow.parts:
        yield from flattened(part)


def joined_states(states: Iterable[State]) -> State:
    """Return what is known where several ways through a program meet."""
    given = iter(states)
    result = dict(next(given))
    for state in given:
        for variable, flow in state.items():
            known = result.get(variable)
            result[variable] = flow if known is None or known is flow else joined(known, flow)
    return result

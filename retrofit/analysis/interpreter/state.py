"""Abstract values: what is known of a variable at one point of a program, and how two such states are joined."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
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
        mine = self._hash, self.node, self.calls, self.kind, self.is_source  # type: ignore[attr-defined]
        return mine == (other._hash, other.node, other.calls, other.kind, other.is_source)  # type: ignore[attr-defined]


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
Owner = Union[Scope, Cell]
Variable = tuple[Owner, object]  # type: ignore[misc]
NOTHING_HELD: Mapping[object, Flow] = {}


class State:
    """What is known of the variables of scopes and of what objects hold.

    Copies share all that an owner has until one of them changes it: most branches and calls change little.
    """

    def __init__(self, held: dict[Owner, dict[object, Flow]] | None = None) -> None:
        self._held = {} if held is None else held
        self._unshared: set[Owner] = set()

    def copy(self) -> State:
        self._unshared.clear()
        return State(dict(self._held))

    def __getitem__(self, variable: Variable) -> Flow:
        return self._held[variable[0]][variable[1]]

    def get(self, variable: Variable) -> Flow | None:
        return self._held.get(variable[0], NOTHING_HELD).get(variable[1])

    def __contains__(self, variable: Variable) -> bool:
        return variable[1] in self._held.get(variable[0], NOTHING_HELD)

    def __setitem__(self, variable: Variable, flow: Flow) -> None:
        owner, key = variable
        if owner not in self._unshared:
            self._held[owner] = dict(self._held.get(owner, NOTHING_HELD))
            self._unshared.add(owner)
        self._held[owner][key] = flow

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._held == other._held

    def held_by(self, owners: Collection[Owner]) -> list[tuple[object, Flow]]:
        """Return the keys and values of some owners, in the order in which these got their first one."""
        known = owners if len(owners) == 1 else [owner for owner in self._held if owner in owners] if owners else ()
        return [pair for owner in known for pair in self._held.get(owner, NOTHING_HELD).items()]

    def drop(self, owner: Owner) -> None:
        """Forget all that an owner has."""
        self._held.pop(owner, None)
        self._unshared.discard(owner)

    def changed_since(self, before: State) -> Iterator[Variable]:
        """Yield the variables that had another value before."""
        for owner, entries in before._held.items():
            now = self._held.get(owner, NOTHING_HELD)
            if now is not entries:
                yield from ((owner, key) for key, flow in entries.items() if now.get(key, NONE) != flow)

    def mapped(self, change: Callable[[Owner, Flow], Flow]) -> State:
        """Return a state in which each value is changed."""
        held = {owner: {k: change(owner, f) for k, f in entries.items()} for owner, entries in self._held.items()}
        return State(held)

    def join(self, other: State) -> None:
        """Let each variable have its value here or that of another state."""
        other._unshared.clear()
        for owner, entries in self._not_shared(other):
            known = self._held.setdefault(owner, entries)
            if known is not entries:
                for key, flow in entries.items():
                    mine = known.get(key)
                    both = flow if mine is None or mine is flow else joined(mine, flow)
                    if both is not mine:
                        self[owner, key] = both

    def _not_shared(self, other: State) -> list[tuple[Owner, dict[object, Flow]]]:
        """Return what another state holds, without what this one has in the same place: copies share most of it."""
        both = zip(self._held.items(), other._held.items())
        changed = [theirs for mine, theirs in both if mine[1] is not theirs[1] or mine[0] is not theirs[0]]
        return [*changed, *islice(other._held.items(), len(self._held), None)]


def joined(one: Flow, other: Flow) -> Flow:
    """Return what is known of a value that is one or the other."""
    if one == other:
        return one
    return drawn_too(_joined(one, other), one, other)


def returned_by_either(one: Flow, other: Flow) -> Flow:
    """Return what is known of what one or another function gives: of one kind, it gets its place where it is called."""
    both = joined(one, other)
    if one == other or one.kind != other.kind or one.kind in (SAME, OTHER) or one.parts or other.parts:
        return both
    inputs = escaped(replace(one, roots=frozenset())) | escaped(replace(other, roots=frozenset()))
    is_read, is_term = one.is_read and other.is_read, one.is_term and other.is_term
    made = replace(one, place=None, is_read=is_read, is_term=is_term, inputs=inputs)
    return replace(made, is_drawn=both.is_drawn, roots=one.roots | other.roots, cells=both.cells)


def drawn_too(flow: Flow, *sources: Flow) -> Flow:
    """Return `flow`, marked as drawn if one of its sources is."""
    if not flow.is_drawn:
        for source in sources:
            if source.is_drawn:
                return replace(flow, is_drawn=True)
    return flow


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
    given = [flow for outer in flows for flow in (flattened(outer) if outer.parts else (outer,))]
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
    result = next(given).copy()
    for state in given:
        result.join(state)
    return result

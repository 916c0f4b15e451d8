"""The nodes of a syntax tree. Trees are never changed once they are read, so each node keeps its parts.

`ast.walk` looks up the fields of every node each time, and rules walk the same functions some hundred times.
"""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterator
from functools import cache, cached_property
from itertools import chain
from typing import Any, TypeVar, overload

A = TypeVar("A", bound=ast.AST)
B = TypeVar("B", bound=ast.AST)
C = TypeVar("C", bound=ast.AST)
S = TypeVar("S")
# Fields of texts and numbers, and the contexts of names: all of these are one object.
WITHOUT_NODES = frozenset({"id", "attr", "arg", "ctx", "kind", "level", "module", "type_comment"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def children(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return what `ast.iter_child_nodes` yields, without the contexts of names: all of these are one object."""
    parts: tuple[ast.AST, ...] | None = getattr(node, "own_parts", None)
    if parts is None:
        parts = node.own_parts = tuple(_parts_of(node))  # type: ignore[attr-defined]
    return parts


@cache
def _fields_with_nodes(kind: type[Any]) -> list[str]:
    return [name for name in kind._fields if name not in WITHOUT_NODES]


def _parts_of(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in _fields_with_nodes(type(node)):  # type: ignore[arg-type]
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [part for part in value if isinstance(part, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes in it, in the order of `ast.walk`."""
    waiting = deque((node,))
    while waiting:
        node = waiting.popleft()
        waiting.extend(children(node))
        yield node


class Nodes(list[ast.AST]):
    """Nodes in an order that stays. Many ask for those of some types, so these lists stay with them."""

    @cached_property
    def _known(self) -> dict[tuple[type[ast.AST], ...], list[Any]]:
        return {}

    @overload
    def of(self, kind: type[A], /) -> list[A]: ...
    @overload
    def of(self, one: type[A], other: type[B], /) -> list[A | B]: ...
    @overload
    def of(self, one: type[A], two: type[B], three: type[C], /) -> list[A | B | C]: ...
    @overload
    def of(self, *kinds: type[ast.AST]) -> list[Any]: ...
    def of(self, *kinds: type[ast.AST]) -> list[Any]:
        """Return the nodes of some types, in order."""
        known = self._known
        if kinds not in known:
            known[kinds] = [node for node in self if isinstance(node, kinds)]
        return known[kinds]


class Places(list[tuple[ast.AST, S]]):
    """Nodes of a whole project in an order that stays, each with the scope that it is in, and an index by type."""

    @cached_property
    def _known(self) -> dict[tuple[type[ast.AST], ...], list[Any]]:
        return {}

    @cached_property
    def _numbers(self) -> dict[type[ast.AST], list[int]]:
        found: dict[type[ast.AST], list[int]] = defaultdict(list)
        for number, (node, _) in enumerate(self):
            found[type(node)].append(number)
        return found

    @overload
    def of(self, kind: type[A], /) -> list[tuple[A, S]]: ...
    @overload
    def of(self, one: type[A], other: type[B], /) -> list[tuple[A | B, S]]: ...
    @overload
    def of(self, one: type[A], two: type[B], three: type[C], /) -> list[tuple[A | B | C, S]]: ...
    @overload
    def of(self, *kinds: type[ast.AST]) -> list[tuple[Any, S]]: ...
    def of(self, *kinds: type[ast.AST]) -> list[Any]:
        """Return the nodes of some types with their scopes, in order."""
        known = self._known
        if kinds not in known:
            chosen = [numbers for kind, numbers in self._numbers.items() if issubclass(kind, kinds)]
            known[kinds] = [self[number] for number in sorted(chain.from_iterable(chosen))]
        return known[kinds]

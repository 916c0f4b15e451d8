"""Values that an expression can have: those that flow into it through assignments, calls, returns and attributes.

Nothing is run. A value is known by where it was made; what an expression has at run time is one of its values, and
what the analysis cannot follow has none. Flow and context do not count: a name has the values of all its bindings.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TypeVar, Union

from ..scopes import Function, Scope

T = TypeVar("T")


def _hashed_once(kind: type[T]) -> type[T]:
    """Let a class of values that hold each other compute its hash only once: x.a().b() is as long as the code."""
    compute = kind.__hash__

    def hash_of(value: T) -> int:
        if "_hash" not in value.__dict__:
            value.__dict__["_hash"] = compute(value)
        return int(value.__dict__["_hash"])

    kind.__hash__ = hash_of  # type: ignore[assignment]
    return kind


@dataclass(frozen=True)
class External:
    """Something that is not part of the project, by its full name: collections.OrderedDict."""

    name: str


@_hashed_once
@dataclass(frozen=True)
class Result:
    """What a call of something external gave. `builder` is its full name, `receiver` whose method it was.

    Of a call of functools.partial(f, ...), `builder` is f and `receiver` the partial, which holds arguments too.
    """

    builder: str
    call: ast.Call
    scope: Scope
    receiver: Value | None = None

    @property
    def is_partial(self) -> bool:
        return self.builder == "functools.partial" and bool(self.call.args)


@_hashed_once
@dataclass(frozen=True)
class Member:
    """An attribute of a value that the analysis cannot look into: args.lr, table.keys."""

    base: Value
    name: str


@_hashed_once
@dataclass(frozen=True)
class Item:
    """An element of a value that the analysis cannot look into: a line of a file, a setting by its key."""

    base: Value
    key: str = ""


@dataclass(frozen=True)
class LocalFunction:
    """A function or method of the project; `receiver` is the class that a method is bound to."""

    node: Function
    scope: Scope  # that the function opens
    receiver: Scope | None = None


@dataclass(frozen=True)
class LocalClass:
    scope: Scope


@dataclass(frozen=True)
class Instance:
    """An object of a class of the project; `call` made it, None for `self`."""

    scope: Scope
    call: ast.Call | None = None


@dataclass(frozen=True)
class LocalModule:
    scope: Scope


@dataclass(frozen=True)
class Display:
    """An expression that is its own value: a number, a list, an arithmetic expression."""

    node: ast.expr
    scope: Scope


Value = Union[External, Result, Member, Item, LocalFunction, LocalClass, Instance, LocalModule, Display]
Values = frozenset[Value]  # type: ignore[misc]
NOTHING: frozenset = frozenset()


def is_dict(value: Value) -> bool:
    """Return whether a value is written down as a dict, or by a call of dict()."""
    if isinstance(value, Display):
        return isinstance(value.node, (ast.Dict, ast.DictComp))
    return isinstance(value, Result) and value.builder == "dict"


def name_of(value: Value) -> str:
    """Return the full name of something external or of what made it, "" where there is none.

    `argparse.ArgumentParser.parse_args.lr` is `args.lr` after `args = argparse.ArgumentParser().parse_args()`.
    """
    if isinstance(value, External):
        return value.name
    if isinstance(value, Result):
        return value.builder
    if isinstance(value, Member):
        base = name_of(value.base)
        return f"{base}.{value.name}" if base else ""
    return ""

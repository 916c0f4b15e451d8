"""Facts about libraries that the analysis is given: plain Python, until the functions of another library are named."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .scopes import Scope
    from .values.inference import Analysis
    from .values.kinds import Value


def _nothing(analysis: Analysis) -> list[Scope]:
    return []


def _never(analysis: Analysis, value: Value) -> bool:
    return False


def _no_member(module: str, words: str, call: ast.Call | None) -> str:
    return ""


@dataclass(frozen=True)
class Library:
    """Names with a meaning for the analysis: functions by their full names, methods by their own."""

    same_functions: Collection[str] = frozenset({"iter", "reversed"})  # give what their first argument holds
    picking: Collection[str] = frozenset({"random.choice", "random.Random.choice"})  # give one of what they are given
    picking_several: Collection[str] = frozenset({"random.choices", "random.sample"})
    calling: Collection[str] = frozenset()  # call their first argument with the others
    same_methods: Collection[str] = frozenset()  # give their own object
    creating_methods: Collection[str] = frozenset()  # of classes: give an object of the class that they are called on
    creating_functions: frozenset[str] = frozenset()  # make an object of a class that a text names
    wrappers: Mapping[str, int] = field(default_factory=dict)  # with the position of what they wrap
    holders: Mapping[str, str] = field(default_factory=dict)  # containers of objects, with how they are given them
    kept_arguments: Mapping[str, list[str]] = field(default_factory=dict)  # parameters that are attributes later
    moving_methods: Collection[str] = frozenset()  # as statements: the object is another one from here on
    filling_methods: Collection[str] = frozenset()  # as statements: the object is the same, with other content
    setting_methods: Collection[str] = frozenset()  # of objects: set an attribute by its name
    starting_with_rank: Collection[str] = frozenset()  # start processes that are given their number first
    starting: Collection[str] = frozenset({"multiprocessing.Process"})  # start a process
    functional_packages: Collection[str] = frozenset()  # their functions keep nothing of what they are given
    array_functions: Collection[str] = frozenset({"split"})  # by their own names: give parts of their arguments
    called_from_outside: Collection[str] = (
        "__init__",
        "__call__",
        "__getitem__",
        "__len__",
        "__iter__",
        "__enter__",
        "__exit__",
        "write",
        "flush",
    )  # methods that are called of an object that a library is given
    owning_methods: Collection[str] = frozenset()  # by which such an object is told where it is not known
    is_replaced: Callable[[Analysis, Value], bool] = _never  # of objects that a rewrite gives another place
    unknown_member: Callable[[str, str, ast.Call | None], str] = _no_member  # of a module, taken by a text
    starts: Callable[[Analysis], list[Scope]] = _nothing  # taken to run, though nothing in the project calls them


PYTHON = Library()

"""Functions that calls run, places on all paths to a call, and operands that a value is computed from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from retrofit.analysis.flow.calls.graph import functions_reached, holds_on_every_path, nearest_on_paths, with_called
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training import read_project

DEEP = [f"def f{n}():\n    f{n + 1}()" for n in range(30)]  # deeper than any limit that a search had


def analysis_of(folder: Path, *lines: str) -> Analysis:
    (folder / "train.py").write_text("".join(f"{line}\n" for line in lines))
    return read_project(folder / "train.py").analysis


def call_of(analysis: Analysis, name: str) -> tuple[ast.Call, Scope]:
    """Return the first call of a name, and its scope."""
    places = [(node, scope) for scope in analysis.scopes() for node in own_nodes(scope.node)]
    return next((n, s) for n, s in places if isinstance(n, ast.Call) and getattr(n.func, "id", "") == name)


def is_in_with(node: ast.AST, scope: Scope) -> bool:
    return any(isinstance(outer, ast.With) for outer in scope.source.ancestors(node))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["with a:", "    look()"], True),
        (["look()"], False),
        (["def f():", "    look()", "with a:", "    f()", "    f()"], True),
        (["def f():", "    look()", "with a:", "    f()", "f()"], False),
        (["def f():", "    look()"], False),
        (["def f():", "    look()", "    f()", "with a:", "    f()"], True),
        (["def f():", "    look()", "    g()", "def g():", "    f()", "with a:", "    g()"], True),
        (["def f():", "    look()", "    f()"], False),
        ([*DEEP, "def f30():", "    look()", "with a:", "    f0()"], True),
        ([*DEEP, "def f30():", "    look()", "f0()"], False),
    ],
)
def test_what_every_path_goes_through(lines: list[str], expected: bool, tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, *lines)
    assert holds_on_every_path(analysis, *call_of(analysis, "look"), is_in_with) is expected


def test_the_nearest_place_of_each_path(tmp_path: Path) -> None:
    lines = ["def f():", "    look()", "def g():", "    with a:", "        f()", "with b:", "    g()", "    f()", "f()"]
    analysis = analysis_of(tmp_path, *lines)
    found = nearest_on_paths(analysis, *call_of(analysis, "look"), is_in_with)
    assert {place and getattr(place[0], "lineno", 0) for place in found} == {5, 8, None}


def test_functions_that_call_each_other_have_what_one_of_them_has(tmp_path: Path) -> None:
    lines = [
        "def f():",
        "    g()",
        "def g():",
        "    f()",
        "    look()",
        "def h():",
        "    f()",
        "def other():",
        "    pass",
    ]
    analysis = analysis_of(tmp_path, *lines)
    _, own = call_of(analysis, "look")
    found = with_called({own: {"look"}}, lambda scope: sites_of(analysis, scope))
    assert {getattr(scope.node, "name", ""): names for scope, names in found.items()} == {
        key: {"look"} for key in "fgh"
    }


def test_functions_reached_from_a_call(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, *DEEP, "def f30():", "    f0()", "f28()")
    names = [getattr(f.node, "name", "") for f in functions_reached(analysis, [call_of(analysis, "f28")])]
    assert names[:4] == ["f28", "f29", "f30", "f0"] and len(set(names)) == len(names) == 31


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a = b * c", "look(a + 1)"], {"b", "c"}),
        (["def f(x):", "    return x / b", "look(f(c))"], {"b", "c"}),
        (["a = [b]", "a.append(c)", "look(a)"], {"b"}),
        (["a = {'x': b, 'y': c}", "look(a['x'])"], {"b", "c"}),
        (["for a in range(b, c):", "    look(a)"], set()),
        (["a = b", "a += c", "look(a)"], {"b", "c"}),
        (["a = b if c else 1", "look(a)"], {"b"}),
        (["look(b if c else 1)"], {"b", "c"}),
        (["a = lambda x: b", "look(a(c))"], {"b", "c"}),
    ],
)
def test_what_a_value_is_computed_from(lines: list[str], expected: set[str], tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, *lines)
    call, scope = call_of(analysis, "look")
    names = {o.node.id for o in computed_from(analysis, call.args[0], scope) if isinstance(o.node, ast.Name)}
    assert names & {"b", "c"} == expected


def test_what_was_put_into_a_list_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    analysis = analysis_of(tmp_path, "a = [b]", "a.append(c)", "look(a)")
    call, scope = call_of(analysis, "look")
    found = computed_from(analysis, call.args[0], scope, stored=True)
    assert {o.node.id for o in found if isinstance(o.node, ast.Name)} == {"a", "b", "c"}

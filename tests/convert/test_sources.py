"""Where a value comes from: through names, functions, attributes and containers of a project."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training import read_project

OWN = """\
class Box:
    def __init__(self, a):
        self.a, self.all = a, []
    def add(self, x):
        self.all.append(x)
        self.n += x
"""


def found_in(folder: Path, *lines: str) -> list[str]:
    """Return the texts of what the argument of `look(x)` comes from, and that comes from nothing else."""
    analysis, node, scope = looked_at(folder, *lines)
    found = origins(analysis, [Origin(node, scope)])
    ends = [origin for origin in found if not origin.keys and not list(sources(analysis, origin))]
    return [ast.unparse(origin.node) for origin in ends]


def looked_at(folder: Path, *lines: str) -> tuple[Analysis, ast.expr, Scope]:
    """Return the argument of the call `look(x)` in a script, and its scope."""
    (folder / "train.py").write_text("".join(f"{line}\n" for line in lines))
    analysis = read_project(folder / "train.py").analysis
    calls = ((node, scope) for scope in analysis.scopes() for node in own_nodes(scope.node))
    return next((analysis, n.args[0], s) for n, s in calls if getattr(getattr(n, "func", n), "id", "") == "look")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a = 1", "b = a", "look(b)"], ["1"]),
        (["a = 1", "a = 2", "look(a)"], ["2"]),
        (["a = 1", "if later:", "    a = 2", "look(a)"], ["1", "2"]),
        (["a = 1", "look(a)", "a = 2"], ["1"]),
        (["a = 1", "for i in data:", "    look(a)", "    a = 2"], ["1", "2"]),
        (["a = 1", "for i in look(a):", "    a = 2"], ["1"]),
        (["a = 1", "while look(a):", "    a = 2"], ["1", "2"]),
        (["a = 1", "for i in data:", "    a = 2", "    look(a)", "    a = 3"], ["2"]),
        (["a = 1", "b = [a for a in [2]]", "look(a)"], ["1"]),
        (["a = 1", "b = [look(a) for a in [2]]"], ["2"]),
        (["a = [1]", "b = [c for a in look(a) for c in a]"], ["[1]"]),
        (["a = [3]", "b = [look(a) for a in a]"], ["3"]),
        (["a = [3]", "b = [a for a in [1, 2] if look(a)]"], ["1", "2"]),
        (["a = 1", "a += 2", "look(a)"], ["1", "a += 2"]),
        (["a = 1 if later else 2", "look(a or 3)"], ["1", "2", "3"]),
        (["look(a := 1)"], ["1"]),
        (["def f(x):", "    look(x)", "f(1)", "f(x=2)"], ["1", "2"]),
        (["def f(x=3):", "    look(x)", "f()", "f(1)"], ["1", "3"]),
        (["def f(x):", "    look(x)", "f(**dict(x=1))"], ["1"]),
        (["def f(x, *rest):", "    look(rest[1])", "f(1, 2, 3)"], ["3"]),
        (["def f(**options):", "    look(options['b'])", "f(a=1, b=2)"], ["2"]),
        (["def f(x):", "    return x", "look(f(1))"], ["1"]),
        (["def f():", "    return 1, 2", "a, b = f()", "look(b)"], ["2"]),
        (["def f():", "    yield 1, 2", "for a, b in f():", "    look(b)"], ["2"]),
        (["import functools", "def f(x, y):", "    return 1", "look(functools.partial(f, 2)(3))"], ["1"]),
        (["a = [1, 2]", "look(a[-1])"], ["2"]),
        (["a = [1, 2]", "look(a[1:][i])"], ["1", "2"]),
        (["a = [1, *b, 2]", "b = [3]", "look(a[0])"], ["1"]),
        (["a = [1, *b, 2]", "b = [3]", "look(a[1])"], ["3", "2"]),
        (["a = (1,) + (2, 3)", "look(a[0])"], ["1"]),
        (["a = (1,) + (2, 3)", "look(a[2])"], ["3"]),
        (["a = []", "a.append(1)", "look(a[0])"], ["1"]),
        (["a = []", "a.extend([1, 2])", "look(a[0])"], ["1", "2"]),
        (["a = []", "a.insert(0, 1)", "look(a[0])"], ["1"]),
        (["a = []", "b = a.insert(0, 1)", "look(a[0])"], []),
        (["a = set()", "a.add(1)", "for x in a:", "    look(x)"], ["1"]),
        (["import torch", "a = torch.ones(2)", "a.add(1)", "look(a[0])"], []),
        (["a = {'x': 1, 'y': 2}", "a['x'] = 3", "look(a['x'])"], ["1", "3"]),
        (["a = dict(x=1)", "a.update(y=2)", "look(a.get('y', 3))"], ["2", "3"]),
        (["a = {'x': 1}", "for key, value in a.items():", "    look(value)"], ["1"]),
        (["a = {'x': 1}", "look({**a, 'y': 2}['x'])"], ["1"]),
        (["a = [1, 2]", "for i, x in enumerate(a):", "    look(x)"], ["1", "2"]),
        (["a = [1, 2]", "for i, (x, y) in enumerate(zip(a, [3])):", "    look(y)"], ["3"]),
        (["a = [1]", "look([x for x in a][0])"], ["1"]),
        (["a = iter([1])", "look(next(a))"], ["1"]),
        ([OWN, "box = Box(1)", "look(box.a)"], ["1"]),
        ([OWN, "box = Box(1)", "box.add(2)", "look(box.all[0])"], ["2"]),
        (["class A:", "  @property", "  def x(self):", "    return 1", "look(A().x)"], ["1"]),
        ([OWN, "box = Box(1)", "box.a = 2", "look(box.a)"], ["1", "2"]),
        (["def f(x=3):", "    look(x)", "options = read()", "f(**options)"], ["3"]),
        (["a, *b = [1, 2, 3]", "look(b[0])"], ["2"]),
        (["*a, b = [1, 2, 3]", "look(b)"], ["3"]),
        (["for a, *b in [(1, 2, 3)]:", "    look(b[1])"], ["3"]),
        (["class A:", "  def f(self):", "    for self.x in [1, 2]:", "      look(self.x)"], ["1", "2"]),
        (["class A:", "  def f(self):", "    a, *self.x = 1, 2", "    look(self.x[0])"], ["2"]),
        (["class A:", "  x = 1", "A.x = 2", "look(A.x)"], ["1", "2"]),
        (["a, b = reversed([1, 2])", "look(a)"], ["1", "2"]),
        (["look(sorted([1, 2])[0])"], ["1", "2"]),
        (["look(list({1, 2})[0])"], ["1", "2"]),
        (["look(tuple([1, 2])[1])"], ["2"]),
        (["for key in {'x': 1}:", "    look(key)"], ["'x'"]),
        (["a = {'x': 1}", "a['y'] = 2", "for i, key in enumerate(a):", "    look(key)"], ["'x'"]),
        (["a = {'x': 1}", "look(list(a)[0])"], ["'x'"]),
        (["a = {'x': 1}", "look(list(a.values())[0])"], ["1"]),
        (["for key, value in {'x': 1}.items():", "    look(key)"], ["'x'"]),
        (["pairs = [(1, 2), (3, 4)]", "a, b = zip(*pairs)", "look(b[0])"], ["2"]),
        (["def f():", "    yield 1", "    yield from [2, 3]", "look(list(f())[0])"], ["1", "2", "3"]),
        (["a = [1, 2]", "while later:", "    a = a[1:]", "look(a[0])"], ["1", "2"]),
        (["a = a", "look(a)"], []),
    ],
)
def test_sources(lines: list[str], expected: list[str], tmp_path: Path) -> None:
    assert sorted(set(found_in(tmp_path, *lines))) == sorted(expected)


PARTIAL = ["from functools import partial", "def f(x, y=1, *rest, **options):", "    look(y)"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([*PARTIAL, "partial(f, y=2)(0)"], ["2"]),
        ([*PARTIAL, "partial(f, y=2)(0, y=3)"], ["3"]),
        ([*PARTIAL, "partial(f, 0)(2)"], ["2"]),
        ([*PARTIAL, "partial(partial(f, 0), 2)()"], ["2"]),
        ([*PARTIAL, "g = partial(f, 0)", "g()"], ["1"]),
        ([*PARTIAL[:2], "    look(rest[0])", "partial(f, 0, 1)(2)"], ["2"]),
        ([*PARTIAL[:2], "    look(options['z'])", "partial(f, z=2)(0)"], ["2"]),
        (
            [*PARTIAL, "def g():", "    y = 2", "    return partial(f, y=y)", "def h():", "    y = 3", "    g()(0)"],
            ["2"],
        ),
    ],
)
def test_arguments_of_partial_are_arguments_of_the_function(
    lines: list[str], expected: list[str], tmp_path: Path
) -> None:
    assert found_in(tmp_path, *lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["try:", "    from fancy import a", "except ImportError:", "    a = 1", "look(a)"], ["1", "a"]),
        (["if later:", "    def a(): pass", "else:", "    a = 1", "look(a)"], ["1", "a"]),
        (["a = 1", "try:", "    run()", "except ValueError as a:", "    look(a)"], ["1", "a"]),
        (["def f(x):", "    x = x or 1", "    look(x)"], ["1", "x"]),
        (["def f(x=1):", "    look(x)"], ["1", "x"]),
        (["def f(x=1):", "    look(x)", "f()", "map(f, data)"], ["1", "x"]),
        (["def f(x=1):", "    look(x)", "f()", "Thread(target=f)"], ["1", "x"]),
        (["def f(x=1):", "    look(x)", "g = f", "g()", "print(g())"], ["1"]),
        (["def f(x=1):", "    look(x)", "losses = {'f': f}", "losses[name]()"], ["1"]),
    ],
)
def test_what_is_not_followed_is_a_source_too(lines: list[str], expected: list[str], tmp_path: Path) -> None:
    assert sorted(set(found_in(tmp_path, *lines))) == expected


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the match statement is new in Python 3.10")
def test_what_a_pattern_binds_is_not_followed(tmp_path: Path) -> None:
    assert sorted(found_in(tmp_path, "a = 1", "match x:", "    case [a]:", "        look(a)")) == ["1", "a"]


def test_star_imports_are_followed(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from .size import *\n")
    (tmp_path / "parts" / "size.py").write_text("SIZE = 4\n")
    assert found_in(tmp_path, "from parts import *", "look(SIZE)") == ["4"]
    assert found_in(tmp_path, "from parts import SIZE", "look(SIZE)") == ["4"]
    assert found_in(tmp_path, "import parts", "look(parts.SIZE)") == ["4"]
    assert sorted(found_in(tmp_path, "SIZE = 3", "from parts import *", "look(SIZE)")) == ["3", "4"]


def test_a_value_of_another_module_is_followed(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text("rate = 1\nsize = 2\n")
    assert found_in(tmp_path, "import settings", "from settings import rate", "look(rate)") == ["1"]
    assert found_in(tmp_path, "import settings", "look(settings.size)") == ["2"]
    assert sorted(found_in(tmp_path, "import settings", "settings.size = 3", "look(settings.size)")) == ["2", "3"]


def test_the_caller_goes_through_operators_and_stops_where_it_likes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("a = b = 1\nc = a + b * 2\nd = 3 if b else c\n")
    analysis = read_project(tmp_path / "train.py").analysis
    scope = next(iter(analysis.scopes()))

    def through(origin: Origin) -> list[Origin] | None:
        if isinstance(origin.node, ast.BinOp):
            return [origin.to(origin.node.left)] if isinstance(origin.node.op, ast.Add) else []
        return None

    value = scope.bindings["d"][0].value
    assert value is not None
    texts = [ast.unparse(origin.node) for origin in origins(analysis, [Origin(value, scope)], through)]
    assert texts == ["3 if b else c", "3", "c", "a + b * 2", "a", "1"]


def test_a_package_that_imports_its_own_part_ends_the_search(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "__init__.py").write_text("from parts import size\n")
    (tmp_path / "parts" / "size.py").write_text("SIZE = 4\n")
    assert found_in(tmp_path, "import parts", "look(parts.size)") == ["parts.size"]

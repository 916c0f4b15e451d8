"""Where a value comes from: through names, functions, attributes and containers of a project."""

from __future__ import annotations

import ast
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
        (["a = [1, *b, 2]", "b = [3]", "look(a[0])"], ["1", "3", "2"]),
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
        (["a = a", "look(a)"], []),
    ],
)
def test_sources(lines: list[str], expected: list[str], tmp_path: Path) -> None:
    assert sorted(set(found_in(tmp_path, *lines))) == sorted(expected)


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

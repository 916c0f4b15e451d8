"""Which assignments of a name can have given it its value at a place: arms, blocks, jumps."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.training import read_project

USE = "show(value)"


def values_at_use(folder: Path, *lines: str) -> list[str]:
    """Return the values, as text, that `value` can have in the function with these lines, where it is shown."""
    body = "".join(f"    {line}\n" for line in lines)
    (folder / "train.py").write_text(f"def run(given):\n{body}")
    project = read_project(folder / "train.py")
    source = project.modules.entry
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and ast.unparse(node) == USE]
    (name,) = calls[-1].args
    assert isinstance(name, ast.Name)
    (scope,) = project.analysis.module_scopes[source].children
    return [ast.unparse(b.value) for b in live_bindings(name, scope)[1] if b.value is not None]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # the last one of each arm
        (["if given:", "    value = 1", "    value = 2", "else:", "    value = 3", USE], ["2", "3"]),
        (["value = 0", "if given:", "    value = 1", "else:", "    value = 2", USE], ["1", "2"]),
        (["value = 0", "if given:", "    value = 1", "elif given > 1:", "    value = 2", USE], ["0", "1", "2"]),
        (["value = 0", "if given:", "    return", "else:", "    value = 2", USE], ["2"]),
        (["if given:", "    value = 1", "    if given > 1:", "        value = 2", "    value = 3", USE], ["3"]),
        # a block that always runs
        (["with given:", "    value = 1", "    value = 2", USE], ["2"]),
        (["value = 0", "with given:", "    if given:", "        value = 1", "    else:", "        return", USE], ["1"]),
        # in a loop
        (["for _ in given:", "    value = 1", "    value = 2", USE], ["2"]),
        (["for _ in given:", "    value = 1", "    if given:", "        break", "    value = 2", USE], ["1", "2"]),
        (["value = 0", "for _ in given:", f"    {USE}", "    value = 1", "    value = 2"], ["0", "1", "2"]),
        # the variable of a loop
        (["value = 0", "for value in given:", f"    {USE}", "    value = 1", "value = 2"], ["given"]),
        (["for _ in given:", "    for value in given:", f"        {USE}", "    value = 1"], ["given"]),
        (["for value in given:", "    while given:", f"        {USE}", "        value = 1"], ["given", "1"]),
        (["for value in given:", "    if given:", "        value = 1", f"    {USE}", "value = 2"], ["given", "1"]),
        (["value = 0", "for value in given:", "    pass", f"else:\n        {USE}"], ["0", "given"]),
        (["value = 0", "for value in given:", "    pass", USE], ["0", "given"]),
        # what comes only later, where nothing that is certain comes before
        (["if given:", "    value = 1", USE, "value = 2"], ["1"]),
        (["if given:", "    value = 1", "for _ in given:", f"    {USE}", "    value = 2"], ["1", "2"]),
        (["while given:", "    if given:", "        value = 1", f"    {USE}", "    value = 2"], ["1", "2"]),
        # what an error leaves behind
        (["try:", "    value = 1", "    value = 2", "except ValueError:", "    pass", USE], ["1", "2"]),
    ],
)
def test_the_assignments_that_reach_a_place(lines: list[str], expected: list[str], tmp_path: Path) -> None:
    assert values_at_use(tmp_path, *lines) == expected

"""The same project in another layout is converted in the same way: semicolons, one-line blocks, odd comments."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from convert.case import Case
from convert.golden_projects import GoldenProjects, copy_case
from convert.test_converted_projects import CONVERTED

from retrofit.convert.plan import plan_conversion
from retrofit.rules.registry import find_all
from retrofit.training import read_project

UNMOVABLE = (ast.Import, ast.ImportFrom, ast.Global, ast.Return)


class Layout:
    """Lays a file out anew, line by line: what it means stays the same."""

    def __init__(self, text: str, seed: str) -> None:
        self.random = random.Random(seed)
        self.lines = text.split("\n")
        statements = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
        self.starts = {node.lineno - 1 for node in statements}
        self.alone = {node.lineno - 1: node for node in statements if self._is_alone(node)}

    def _is_alone(self, node: ast.stmt) -> bool:
        """Return whether a statement without a block has one line, to itself."""
        line = self.lines[node.lineno - 1]
        start, end = line[: len(line) - len(line.lstrip())], len(line.encode())
        is_simple = not hasattr(node, "body") and node.lineno == node.end_lineno
        return is_simple and node.col_offset == len(start) and node.end_col_offset == end

    def text(self) -> str:
        result: list[str] = []
        for number, line in enumerate(self.lines):
            statement = self.alone.get(number)
            chosen = self.random.choice(["join", "join", "tail", "margin", "break", "brackets", "as it is", "as it is"])
            is_untouched = bool(result) and result[-1].endswith(self.lines[number - 1].strip() or "?")
            if chosen == "join" and is_untouched and self._can_join(number):
                result[-1] += ("" if result[-1].endswith(":") else ";") + " " + line.strip()
                continue
            if statement and chosen == "tail":
                line += self.random.choice([";", '  # note: it\'s "so"', "   ", ";  # one"])
            elif number in self.starts and chosen == "margin":
                result.append(self.random.choice(["# at the margin", "   "]))
            elif isinstance(statement, ast.Assign) and chosen == "break" and " = " in line:
                target, value = line.split(" = ", 1)
                result.append(f"{target} = \\")
                line = f"   {value}"
            elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and chosen == "brackets":
                line = f"{line[: statement.col_offset]}({line.strip()})"
            result.append(line)
        return "\n".join(result)

    def _can_join(self, number: int) -> bool:
        """Return whether a line may go behind the one before: of the same block, or the only one of a block."""
        statement, before = self.alone.get(number), self.alone.get(number - 1)
        if statement is None or isinstance(statement, UNMOVABLE):
            return False
        if before is not None:
            is_text = isinstance(before, ast.Expr) and isinstance(before.value, ast.Constant)
            return before.col_offset == statement.col_offset and not isinstance(before, UNMOVABLE) and not is_text
        following = self.lines[number + 1] if number + 1 < len(self.lines) else "x"
        is_last = bool(following.strip()) and len(following) - len(following.lstrip()) < statement.col_offset
        header = self.lines[number - 1]
        return is_last and header.endswith(":") and header.lstrip().startswith(("if ", "else", "for ", "with ", "def "))


class _Plain(ast.NodeTransformer):
    """Write `if rd.is_main_process(): f()` as `rd.is_main_process() and f()`, and leave out `pass`."""

    def visit_Pass(self, node: ast.Pass) -> None:
        """A statement that is not needed any more goes with its line, or is `pass` on a line that it shares."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        is_guard = ast.unparse(node.test) == "rd.is_main_process()" and not node.orelse
        if not is_guard or not all(isinstance(statement, ast.Expr) for statement in node.body):
            return node
        for statement in node.body:
            statement.value = ast.BoolOp(ast.And(), [node.test, statement.value])  # type: ignore[attr-defined]
        return node.body


def converted(script: Path) -> tuple[Counter[tuple[str, str]], dict[str, str]]:
    """Convert a project in place; return what was found, and what the files say now, whatever their layout."""
    conversion = plan_conversion(read_project(script))
    for file in conversion.files:
        file.path.write_bytes(file.data)
    assert [f"{finding.code} {finding.place}" for finding in find_all(read_project(script))] == []
    texts = {file.source.name: file.text for file in conversion.files}
    return without_places((finding.code, finding.message) for finding in conversion.findings), meanings(texts)


def without_places(findings: Iterable[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return how often each rule says what, without lines and columns."""
    return Counter((code, re.sub(r":\d+:\d+", "", message)) for code, message in findings)


def meanings(texts: dict[str, str]) -> dict[str, str]:
    """Return the files without their layout."""
    return {name: ast.unparse(_Plain().visit(ast.parse(text))) for name, text in texts.items()}


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(example, id=example.name, marks=[pytest.mark.slow] * (number % 2))
        for number, example in enumerate(CONVERTED)
    ],
)
def test_the_layout_makes_no_difference(example: Case, tmp_path: Path, golden_projects: GoldenProjects) -> None:
    other = copy_case(example, tmp_path / "other")
    changed = 0
    for path in other.rglob("*.py"):
        encoding = "latin-1" if b"latin-1" in path.read_bytes()[:60] else "utf-8"
        newline = "\r\n" if b"\r\n" in path.read_bytes() else "\n"
        text = path.read_bytes().decode(encoding).replace("\r\n", "\n")
        laid_out = Layout(text, f"{example.name} {path.name}").text()
        assert ast.dump(ast.parse(laid_out)) == ast.dump(ast.parse(text))
        changed += laid_out != text
        path.write_bytes(laid_out.replace("\n", newline).encode(encoding))
    assert changed
    plain = golden_projects.converted(example)
    assert converted(other / example.entry) == (without_places(plain.findings), meanings(plain.texts))

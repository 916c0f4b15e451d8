"""A mark in a script that tells whether one of its lines is ever run."""

from __future__ import annotations

import ast
from pathlib import Path


def marked(text: str, line: int, mark: Path) -> str:
    """Return a script that makes the file `mark` before it runs the statement at a line.

    Returns the script as it is where the statement does not begin a line of its own.
    """
    lines = text.splitlines(keepends=True)
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    statement = max(around, key=lambda node: (node.lineno, node.col_offset))
    first = lines[statement.lineno - 1]
    indentation = first[: len(first) - len(first.lstrip())]
    if len(indentation) != statement.col_offset:
        return text
    end = first[len(first.rstrip("\r\n")) :]
    lines.insert(statement.lineno - 1, f"{indentation}open({str(mark)!r}, 'w').close(){end}")
    return "".join(lines)

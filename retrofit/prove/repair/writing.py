"""Edits of statements that several repairs need: without a keyword, moved, unwrapped, put under a condition."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Sequence

from retrofit.analysis.edits import Edit, delete_statement, indentation, put_under

from .script import Script, keyword_of


def without_argument(script: Script, call: ast.Call, node: ast.expr | ast.keyword) -> Edit:
    """Remove an argument of a call with the comma before it, or the one after it where it is the first."""
    source = script.source
    start, end = source.span(node)
    others = sorted(source.span(one) for one in [*call.args, *call.keywords] if one is not node)
    before = [span for span in others if span[1] <= start]
    after = [span for span in others if span[0] >= end]
    if before:
        return Edit(source, before[-1][1], end, "")
    return Edit(source, start, after[0][0] if after else end, "")


def with_keyword(script: Script, call: ast.Call, name: str, value: str) -> list[Edit]:
    """Give a call a keyword argument, in the place of the one that it has."""
    from retrofit.analysis.edits import add_argument, replace

    known = keyword_of(call, name)
    if known is not None:
        return [replace(script.source, known.value, value)]
    return add_argument(script.source, call, f"{name}={value}")


def lines_of(script: Script, statement: ast.stmt) -> list[str]:
    """Return the lines of a statement, without its indentation."""
    start, end = script.source.span(statement)
    indent = indentation(script.source, statement)
    return textwrap.dedent(indent + script.source.text[start:end]).splitlines()


def removed(script: Script, statement: ast.stmt) -> Edit:
    """Remove a statement; where it is alone in its block, the `if` or loop around it, else a `pass` takes its place."""
    source = script.source
    while script.block(statement) == [statement]:
        outer = source.parents[statement]
        is_whole = isinstance(outer, (ast.If, ast.For, ast.While, ast.With)) and not getattr(outer, "orelse", None)
        if not is_whole:
            start, end = source.span(statement)
            return Edit(source, start, end, "pass")
        statement = outer  # type: ignore[assignment]
    start, end = source.span(statement)
    return delete_or_cut(script, statement)


def delete_or_cut(script: Script, statement: ast.stmt) -> Edit:
    """Remove a statement that is not alone, also one that shares its line: `a; b; c`."""
    source = script.source
    start, end = source.span(statement)
    line_start = source.line_starts[source.line_of(start) - 1]
    rest = source.text[end : source.text.find("\n", end) if "\n" in source.text[end:] else len(source.text)]
    if not source.text[line_start:start].strip() and not rest.lstrip().startswith(";"):
        return delete_statement(source, statement)
    if rest.lstrip().startswith(";"):
        skipped = len(rest) - len(rest.lstrip()) + 1
        return Edit(source, start, end + skipped + len(rest.lstrip()[1:]) - len(rest.lstrip()[1:].lstrip()), "")
    semicolon = source.text.rfind(";", line_start, start)
    return Edit(source, semicolon, end, "") if semicolon >= 0 else Edit(source, start, end, "pass")


def unwrapped(script: Script, statement: ast.If | ast.For | ast.With) -> Edit:
    """Put the body of a statement in its place."""
    source = script.source
    start, end = source.span(statement)
    indent = indentation(source, statement)
    first = source.span(statement.body[0])[0]
    line = source.line_starts[source.line_of(first) - 1]
    if source.text[line:first].strip():  # on the line of its header
        return Edit(source, start, end, source.text[first : source.span(statement.body[-1])[1]])
    body = source.text[line : source.span(statement.body[-1])[1]]
    text = textwrap.indent(textwrap.dedent(body), indent)
    return Edit(source, start, end, text[len(indent) :])


def under(script: Script, statements: Sequence[ast.stmt], header: str) -> list[Edit]:
    return put_under(script.source, statements, header)


def outermost(script: Script, statement: ast.stmt, test: object) -> ast.stmt:
    """Return the outermost `if` around a statement that holds nothing else and passes `test`; else the statement."""
    while script.block(statement) == [statement]:
        outer = script.source.parents.get(statement)
        if not isinstance(outer, ast.If) or outer.orelse or not test(outer):  # type: ignore[operator]
            break
        statement = outer
    return statement


def guarded_lines(script: Script, statement: ast.stmt, by_rank: object) -> list[str]:
    """Return the lines of a statement under the conditions around it in its function, but for loops and ranks."""
    lines = lines_of(script, statement)
    for outer in script.source.ancestors(statement):
        if not isinstance(outer, ast.If):
            break
        if outer.orelse or by_rank(outer.test):  # type: ignore[operator]
            break
        lines = [f"if {script.text(outer.test)}:", *(f"    {line}" for line in lines)]
    return lines


def without_own_brackets(script: Script, node: ast.expr) -> tuple[int, int]:
    """Return the span of an expression with the brackets that are around it alone: `(a / b)` of `(a / b).item()`."""
    start, end = script.source.span(node)
    text = script.source.text
    is_call = text[start - 2 : start - 1].isalnum() or text[start - 2 : start - 1] in ("_", ")", "]")
    return (
        (start - 1, end + 1)
        if text[start - 1 : start] == "(" and text[end : end + 1] == ")" and not is_call
        else (start, end)
    )

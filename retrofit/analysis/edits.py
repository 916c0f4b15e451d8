"""Changes to a file's text: everything that is not edited stays as it is, byte for byte."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .files.source import Source
from .nodes import walk


@dataclass(frozen=True)
class Edit:
    """Replace `source.text[start:end]` by `text`; nothing is replaced where both are equal."""

    source: Source
    start: int
    end: int
    text: str
    order: int = 0  # among the insertions at one place: a lower one comes first
    block: tuple[int, int] | None = None  # the lines, by offset, that go under a header with this line


# Orders of insertions, so that two rules that add something at one place do not get in each other's way. Lines after a
# statement come first, those after an inner one before those after the statement around it.
AFTER, BEFORE, DECORATOR, HEADER, INDENT = -1000, -500, -400, -300, -200  # whole lines, and white space before one
BEFORE_ON_LINE, CONDITION, WITHIN, ARGUMENT, AFTER_ON_LINE, AT_END = -100, -50, 0, 10, 100, 1000
MOST_INDENT = 400


class EditConflict(ValueError):
    """Two edits want to change the same text. `edits` are these two."""

    def __init__(self, message: str, edits: Sequence[Edit] = ()) -> None:
        super().__init__(message)
        self.edits = tuple(edits)


def apply_edits(source: Source, edits: Iterable[Edit]) -> str:
    """Return the text of `source` after all edits. Insertions at one place come by `order`, then as they are given.

    Lines that are inserted among those that go under a header go under it too. Raises EditConflict when two edits
    overlap. An edit that is given twice counts once.
    """
    ordered = in_order(source, edits)
    headers = Counter(edit.start for edit in ordered if edit.order == HEADER)
    depth = Counter(edit.start for edit in ordered if edit.order == INDENT)
    seen: Counter[int] = Counter()
    parts, position, last = [], 0, None
    for edit in ordered:
        if edit.start < position:
            line = source.line_of(edit.start)
            message = f"{source.name}:{line}: two changes want the same text; this is an error of retrofit"
            raise EditConflict(message, [edit, *([last] if last else [])])
        text = edit.text
        if edit.order <= HEADER and edit.start in depth:  # the headers at one place are nested in each other
            step = indent_step(source, text)
            text = _indented(text, step * (depth[edit.start] - headers[edit.start] + seen[edit.start]))
            seen[edit.start] += edit.order == HEADER
        parts += [source.text[position : edit.start], text]
        position, last = edit.end, edit
    return "".join([*parts, source.text[position:]])


def _indented(text: str, step: str) -> str:
    return "".join(f"{step}{line}" if line.strip() else line for line in io.StringIO(text, newline=""))


def in_order(source: Source, edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits of a source, each once, in the order in which their texts follow each other in the result."""
    unique = [edit for edit in dict.fromkeys(edits) if edit.source is source]
    return sorted(unique, key=lambda edit: (edit.start, edit.end > edit.start, edit.order))


def replace(source: Source, node: ast.AST, text: str) -> Edit:
    return Edit(source, *source.span(node), text)


def surround(source: Source, node: ast.AST, before: str, after: str) -> list[Edit]:
    start, end = source.span(node)
    return [Edit(source, start, start, before), Edit(source, end, end, after)]


def surround_inside(source: Source, node: ast.AST, before: str, after: str) -> list[Edit]:
    """Surround a node inside what another rule may surround: `count` in scaled_lr(own_gpu_count(count) * lr)."""
    start, end = source.span(node)
    return [Edit(source, start, start, before, order=1), Edit(source, end, end, after, order=-1)]


def insert_after(source: Source, statement: ast.stmt, lines: Sequence[str]) -> Edit:
    """Insert lines after a statement, at its indentation; on its line where that continues, or begins with a header."""
    _, end = source.span(statement)
    if _continues(source, end) or _is_on_header_line(source, statement):
        return Edit(source, end, end, "".join(f"; {line}" for line in lines if line), AFTER_ON_LINE)
    return _insert_lines(source, _line_end(source, end), indentation(source, statement), lines, AFTER)


def insert_before(source: Source, statement: ast.stmt, lines: Sequence[str]) -> Edit:
    """Insert lines before a statement and its comment, at its indentation; of a decorated one, of its decorators.

    On its line where something else comes before it there.
    """
    start, _ = source.span(statement)
    if source.text[_line_start(source, start) : start].strip():
        return Edit(source, start, start, "".join(f"{line}; " for line in lines if line), BEFORE_ON_LINE)
    return _insert_lines(source, _above_comment(source, statement), indentation(source, statement), lines, BEFORE)


def under_condition(source: Source, statement: ast.stmt, condition: str, lines: Sequence[str]) -> list[str]:
    """Return lines next to a statement that are run under a condition; the lines themselves without one."""
    step = indent_step(source, indentation(source, statement))
    return [f"if {condition}:", *(f"{step}{line}" for line in lines)] if condition else list(lines)


def decorate(source: Source, function: ast.stmt, line: str) -> Edit:
    """Put a decorator on a function that has none."""
    place = _line_start(source, source.span(function)[0])
    return Edit(source, place, place, f"{indentation(source, function)}{line}{source.newline}", DECORATOR)


def _above_comment(source: Source, statement: ast.stmt) -> int:
    """Return where the comment lines right above a statement begin; its own line where there are none.

    Those that open the file belong to the file: its interpreter, its encoding, its licence.
    """
    indent = indentation(source, statement)
    block = block_of(source, statement)
    before = block[block.index(statement) - 1].end_lineno if block[0] is not statement else 0
    own = line = source.line_of(source.span(statement)[0])
    while line - 1 > (before or 0) and _line(source, line - 1).startswith(f"{indent}#"):
        line -= 1
    return source.line_starts[(own if line == 1 else line) - 1]


def _line(source: Source, number: int) -> str:
    start = source.line_starts[number - 1]
    return source.text[start : _line_end(source, start)]


def delete_statement(source: Source, statement: ast.stmt) -> Edit:
    """Remove a statement with its lines. Only for one that has its lines to itself and is not alone in its block."""
    start, end = source.span(statement)
    return Edit(source, _line_start(source, start), _line_end(source, end), "")


def put_under(source: Source, statements: Sequence[ast.stmt], header: str) -> list[Edit]:
    """Put neighbouring statements of one block under a header: `if condition:`, `with context:`.

    Raises EditConflict when another statement shares their lines.
    """
    first = statements[0]
    for statement in statements:
        if not has_own_lines(source, statement):
            line = source.line_of(source.span(statement)[0])
            raise EditConflict(f"{source.name}:{line}: several statements on one line; write each on its own")
    start, (_, end) = source.span(first)[0], source.span(statements[-1])
    place, indent = _line_start(source, start), indentation(source, first)
    step = indent_step(source, indent or _indentation_within(source, statements))
    block = (place, end)
    edits = [Edit(source, place, place, f"{indent}{header}{source.newline}", HEADER, block)]
    inside_strings = _lines_inside_strings(source, statements)
    for line in range(source.line_of(place), source.line_of(max(place, end - 1)) + 1):
        offset = source.line_starts[line - 1]
        if line not in inside_strings:
            is_empty = source.text[offset : offset + 1] in ("\r", "\n", "")
            edits.append(Edit(source, offset, offset, "" if is_empty else step, INDENT, block))
    return edits


def add_condition(source: Source, statement: ast.If | ast.While, condition: str) -> list[Edit]:
    """Put `condition and` before a test."""
    if isinstance(statement.test, (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)) and not _is_and(statement.test):
        start, end = source.span(statement.test)
        return [Edit(source, start, start, f"{condition} and (", CONDITION), Edit(source, end, end, ")", ARGUMENT)]
    start, _ = source.span(statement.test)
    return [Edit(source, start, start, f"{condition} and ", CONDITION)]


def add_argument(source: Source, call: ast.Call, text: str) -> list[Edit]:
    """Add an argument after the last one of a call."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if not given:
        _, end = source.span(call)
        return [Edit(source, end - 1, end - 1, text, ARGUMENT)]
    end = max(source.span(argument)[1] for argument in given)
    while source.text[end] == ")" and end < source.span(call)[1] - 1:
        end += 1  # the argument is in parentheses of its own
    return [Edit(source, end, end, f", {text}", ARGUMENT)]


def call_through(source: Source, call: ast.Call, function: str) -> list[Edit]:
    """Make `SummaryWriter(path)` into `function(SummaryWriter, path)`."""
    start, end = source.span(call.func)
    bracket = source.text.index("(", end)
    separator = ""
    if call.args or call.keywords:
        separator = "," if source.text[bracket + 1] in "\r\n" else ", "
    return [Edit(source, start, start, f"{function}("), Edit(source, end, bracket + 1, separator)]


def _is_and(test: ast.expr) -> bool:
    return isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)


def has_own_lines(source: Source, statement: ast.stmt) -> bool:
    """Return whether nothing but a comment shares the lines of a statement: no `;`, no `if x: statement`."""
    start, end = source.span(statement)
    before = source.text[_line_start(source, start) : start]
    after = source.text[end : _line_end(source, end)].strip()
    return not before.strip() and (not after or after.startswith("#"))


def _continues(source: Source, end: int) -> bool:
    """Return whether another statement follows on the line: `a; b`, not `a;  # comment`."""
    rest = source.text[end : _line_end(source, end)].lstrip()
    return rest.startswith(";") and not rest[1:].lstrip().startswith("#") and bool(rest[1:].strip())


def _is_on_header_line(source: Source, statement: ast.stmt) -> bool:
    """Return whether a statement's block is on the line of its header: `if x: a; b`."""
    first, _ = source.span(block_of(source, statement)[0])
    return bool(source.text[_line_start(source, first) : first].strip())


def block_of(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    """Return the list of statements that holds `statement`."""
    parent = source.parents[statement]
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    for handler in getattr(parent, "handlers", []):
        if statement in handler.body:
            return handler.body
    return [statement]


def is_elif(source: Source, statement: ast.AST) -> bool:
    """Return whether an `if` is written as a further branch of another one, where it has no block of its own."""
    return isinstance(statement, ast.If) and source.text.startswith("elif", source.span(statement)[0])


def whole_branches(source: Source, statement: ast.stmt) -> ast.stmt:
    """Return the statement next to which lines can be put: for an `elif` the `if` that it belongs to."""
    while is_elif(source, statement):
        statement = source.parents[statement]  # type: ignore[assignment]
    return statement


def indentation(source: Source, statement: ast.stmt) -> str:
    """Return the white space at the start of a statement's line."""
    start, _ = source.span(statement)
    line = source.text[_line_start(source, start) : start]
    return line[: len(line) - len(line.lstrip())]


def indent_step(source: Source, line: str = "") -> str:
    """Return by how much the file indents a block: its own tabs or number of spaces, those with which `line` begins."""
    white = line[: len(line) - len(line.lstrip(" \t"))][:1]
    for node in source.nodes:
        body = getattr(node, "body", None)
        if isinstance(node, ast.stmt) and isinstance(body, list) and isinstance(body[0], ast.stmt):
            outer, inner = indentation(source, node), indentation(source, body[0])
            if len(inner) > len(outer) and inner.startswith(outer) and inner.startswith(white):
                return inner[len(outer) :]
    return "\t" if white == "\t" else "    "


def _indentation_within(source: Source, statements: Sequence[ast.stmt]) -> str:
    """Return the indentation of the first block in some statements, nothing where they have none."""
    bodies = (getattr(node, "body", None) for statement in statements for node in walk(statement))
    return next((indentation(source, body[0]) for body in bodies if isinstance(body, list) and body), "")


def _insert_lines(source: Source, place: int, indent: str, lines: Sequence[str], order: int) -> Edit:
    text = "".join(f"{indent}{line}{source.newline}" if line else source.newline for line in lines)
    if order == AFTER:
        order -= min(len(indent.expandtabs()), MOST_INDENT)
    if place == len(source.text) and source.text and source.text[-1] not in "\r\n":
        text = source.newline + text[: -len(source.newline)]
        order += AT_END - AFTER  # the last line has no end: what else changes it comes before
    return Edit(source, place, place, text, order)


def _line_start(source: Source, offset: int) -> int:
    return source.line_starts[source.line_of(offset) - 1]


def _line_end(source: Source, offset: int) -> int:
    """Return where the line of `offset` ends, its newline included."""
    line = source.line_of(offset)
    return source.line_starts[line] if line < len(source.line_starts) else len(source.text)


def _lines_inside_strings(source: Source, statements: Sequence[ast.stmt]) -> set[int]:
    """Return the lines of statements that start inside a string: white space before them would be part of it."""
    found: set[int] = set()
    for node in (node for statement in statements for node in walk(statement)):
        is_plain = isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
        if not is_plain and not isinstance(node, ast.JoinedStr):
            continue
        if (node.end_lineno or node.lineno) > node.lineno:  # type: ignore[attr-defined]
            found |= _continued_lines(source, node)
    return found


def _continued_lines(source: Source, node: ast.AST) -> set[int]:
    """Return the lines on which string tokens of a string expression continue; implicit joining has several tokens."""
    start, end = source.span(node)
    first, text = source.line_of(start), source.text[start:end]
    found: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({text})").readline):
            if token.type == tokenize.STRING or tokenize.tok_name[token.type].startswith("FSTRING"):
                found |= set(range(first + token.start[0], first + token.end[0]))
    except (tokenize.TokenError, SyntaxError):
        return set(range(first + 1, first + len(re.findall(r"\r\n|\r|\n", text)) + 1))
    return found

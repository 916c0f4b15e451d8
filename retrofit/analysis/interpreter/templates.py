"""Attributes that a text template reads of its arguments: `"{loss.avg:.3f}".format(loss=losses)`."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .state import Flow, mixed

if TYPE_CHECKING:
    from .expressions import Expressions


def is_template(call: ast.Call) -> bool:
    """Return whether a call fills a text that is known, with arguments that are."""
    text = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "format" else None
    is_known = isinstance(text, ast.Constant) and isinstance(text.value, str)
    return is_known and not any(isinstance(part, ast.Starred) for part in call.args)


def filled(expressions: Expressions, call: ast.Call, given: list[Flow], named: list[Flow]) -> Flow:
    """Return what a filled text is made from; all that it is given where its fields cannot be read."""
    by_name = {str(number): (part, flow) for number, (part, flow) in enumerate(zip(call.args, given))}
    by_name.update({k.arg: (k.value, flow) for k, flow in zip(call.keywords, named) if k.arg is not None})
    try:
        fields = list(_fields(call.func.value.value))  # type: ignore[attr-defined]
    except ValueError:  # no template of Python's, which says so when it runs
        return mixed([expressions.whole(flow) for flow in (*given, *named)])
    flows = []
    for number, (name, attribute) in enumerate(fields):
        part, flow = by_name.get(name or str(number), (None, None))
        if part is not None and flow is not None:
            is_read = bool(attribute) and not flow.differs
            read = expressions.of(ast.Attribute(part, attribute, ast.Load())) if is_read else flow
            flows.append(expressions.whole(read))
        else:
            flows += [_entry(expressions, flow, name) for k, flow in zip(call.keywords, named) if k.arg is None]
    return mixed(flows)


def _entry(expressions: Expressions, mapping: Flow, name: str) -> Flow:
    """Return what `**mapping` gives for a field of a template."""
    held = expressions.run.memory.field(mapping.cells, name) if mapping.cells and not mapping.differs else None
    return expressions.whole(mapping if held is None else held)


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each field of a template, "" for the next one, and the attribute that is read of it."""
    for _, field, form, _ in string.Formatter().parse(text):
        if field is not None:
            name, _, rest = field.partition(".")
            yield name.partition("[")[0], rest if rest.isidentifier() and "[" not in name else ""
            yield from _fields(form or "")

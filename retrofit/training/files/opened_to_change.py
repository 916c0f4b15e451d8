"""Files opened to be read and changed, `h5py.File(path, "r+")`: every process needs what is in them."""

from __future__ import annotations

import ast

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.edits import Edit, replace
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .outputs import Output
from .stores import holder_of, is_only_filled, uses_of_name

ARRAYS = "h5py.File"  # of which mode "a" reads, too
READS = frozenset({
    "keys", "values", "items", "get", "visit", "visititems", "close", "read", "readline", "readlines", "seek", "tell",
    "astype", "flush", "fileno",
})  # fmt: skip
TAKES_TO_READ = frozenset({
    "array", "asarray", "len", "list", "tuple", "dict", "set", "sorted", "iter", "enumerate", "zip", "next", "reader",
    "DictReader", "load", "safe_load", "from_numpy", "tensor", "as_tensor", "float", "int", "str", "print", "bool",
    "concatenate", "stack", "isinstance", "type",
})  # fmt: skip


def is_read_too(analysis: Analysis, output: Output) -> bool:
    """Return whether something is read from a file that is opened to be changed: it is there before."""
    mode = _mode(output.call)
    can_be_read = "+" in mode or (mode[:1] == "a" and ARRAYS in analysis.called(output.call, output.scope))
    where = output.call, output.scope
    return can_be_read and (_is_only_read(*where) or not is_only_filled(*where))


def open_to_read(output: Output) -> list[Edit]:
    """Return an edit that opens a file for reading, where nothing changes it; none elsewhere."""
    mode = argument_for(output.call, ["file", "mode"], "mode")
    if mode is None or not _is_only_read(output.call, output.scope):
        return []
    return [replace(output.scope.source, mode, repr("rb" if "b" in _mode(output.call) else "r"))]


def _mode(call: ast.Call) -> str:
    mode = argument_for(call, ["file", "mode"], "mode")
    return mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else ""


def _is_only_read(call: ast.Call, scope: Scope) -> bool:
    """Return whether all uses of a file, and of the arrays and groups in it, read from it."""
    waiting, seen = [holder_of(scope, call)], set()
    while waiting:
        name = waiting.pop()
        if name is None:
            return False
        if name not in seen:
            seen.add(name)
            for use in uses_of_name(scope, name):
                is_read, more = _reads(scope, use)
                if not is_read:
                    return False
                waiting += more
    return True


def _reads(scope: Scope, use: ast.expr) -> tuple[bool, list[str | None]]:
    """Return whether a use reads from a file, and the names that get an array or a group in it."""
    parents = scope.source.parents
    parent = parents[use]
    if isinstance(parent, ast.Subscript) and parent.value is use:
        if not isinstance(parent.ctx, ast.Load):
            return False, []
        is_copy = isinstance(parent.slice, (ast.Slice, ast.Tuple)) or is_ellipsis(parent.slice)
        return (True, []) if is_copy else _reads(scope, parent)
    if isinstance(parent, ast.Attribute):
        call = parents[parent]
        is_called = isinstance(call, ast.Call) and call.func is parent
        return (parent.attr in READS, []) if is_called else _reads(scope, parent)
    if isinstance(parent, (ast.Call, ast.keyword)):
        taking = parent if isinstance(parent, ast.Call) else parents[parent]
        return last_name(taking) in TAKES_TO_READ, []
    if isinstance(parent, ast.Assign):
        return True, [holder_of(scope, use)]
    return isinstance(parent, (ast.withitem, ast.Compare, ast.For, ast.comprehension, ast.Expr)), []


def is_ellipsis(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant) and index.value is Ellipsis

"""Names by which two paths are seen to be of one file: the file's own name, else what the path is made of."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.memory import Memory
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, LocalModule, Value

Names = frozenset[str]
_PLACEHOLDER = re.compile(r"%[-+ #0]*\d*\.?\d*[a-zA-Z]|\{[^{}]*\}")
_FILE = re.compile(r"[^\s/]*[^\s/*.][^\s/]*\.[A-Za-z]\w*")  # with a name of its own: `best_*.pt`, not `*.pt`
_FOLDER = re.compile(r"\w[\w-]+")
MOST_PARTS = 200  # of a path


def names_of_read(analysis: Analysis, path: ast.expr, scope: Scope) -> Names:
    """Return the names of the files that a path can be of; where none is written, of what the path is made of."""
    files, parts = path_names(analysis, path, scope)
    return files or parts


def path_names(analysis: Analysis, path: ast.expr, scope: Scope) -> tuple[Names, Names]:
    """Return the names of the files that a path can be of, and the names of what it is made of: folders, variables."""
    memory: Memory[tuple[Names, Names]] = analysis.fact("names of paths", lambda: Memory((frozenset(), frozenset())))
    return memory.once((path, scope), lambda: _names(analysis, path, scope))


def names_of_variables(analysis: Analysis, path: ast.expr, scope: Scope) -> Names:
    """Return the names of the variables that a path is given by as a whole: `out` of run(out), `.out` of args.out."""
    found = (part for origin in origins(analysis, [Origin(path, scope)]) for part in _part(origin))
    return frozenset(f"{part} as a whole" for part in found)


def _names(analysis: Analysis, path: ast.expr, scope: Scope) -> tuple[Names, Names]:
    files: set[str] = set()
    parts: set[str] = set()
    for number, origin in enumerate(origins(analysis, [Origin(path, scope)], partial(_parts, analysis))):
        text = _text(origin.node)
        if text is not None:
            text = _PLACEHOLDER.sub("*", text)
            files |= set(_FILE.findall(text))
            parts |= {f"{part}/" for part in text.split("/") if _FOLDER.fullmatch(part)}
        parts |= set(_part(origin))
        if number == MOST_PARTS:
            break
    return frozenset(files), frozenset(parts)


def _text(node: ast.AST) -> str | None:
    """Return a written text, with `*` for what is put into it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)  # type: ignore[misc]
    return None


def _part(origin: Origin) -> Iterator[str]:
    node = origin.node
    if isinstance(node, ast.Attribute):
        yield f".{node.attr}"
    elif isinstance(node, ast.Name):
        found = origin.scope.find(node.id)
        yield f"{node.id} {id(found[0]) if found else 0}"


def _parts(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    """Return what a path is put together from; None for what is not."""
    node = origin.node
    if isinstance(node, ast.BinOp):
        return [origin.to(node.left), origin.to(node.right)]
    if isinstance(node, (ast.Tuple, ast.List)):
        return [origin.to(part) for part in node.elts]
    if isinstance(node, ast.JoinedStr):
        return [origin.to(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
    if isinstance(node, ast.Call):
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        of_object = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        if any(_is_module(value) for part in of_object for value in analysis.evaluate(part, origin.scope)):
            of_object = []  # os.path.join(...), rd.path_on_main(...)
        returned = sources(analysis, origin) if analysis.functions_called(node, origin.scope) else ()
        return [*returned, *(origin.to(part) for part in (*of_object, *given) if not isinstance(part, ast.Starred))]
    return None


def _is_module(value: Value) -> bool:
    """Return whether a value is a module, or a class of a library."""
    return isinstance(value, (External, LocalModule))

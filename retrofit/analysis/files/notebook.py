"""Notebooks as scripts: their code cells, in which the lines of IPython are comments."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass, field
from pathlib import Path

from ..nodes import walk
from .source import SourceError, read_file

SUFFIX = ".ipynb"
TIMED = ("%time ", "%timeit ", "%prun ")  # what follows them is Python
TIMED_CELLS = ("%%time", "%%timeit", "%%capture", "%%prun")
HEAD = "# The code cells of {name}, exported by retrofit; lines of IPython are comments.\n"
DISPLAY = "\n\ndef display(*values):  # as IPython has it\n    print(*values)\n\n"


@dataclass
class Export:
    """A notebook as a script, which goes to `path`; `comments` are the lines that are not Python, with their cells."""

    path: Path
    text: str
    number_of_cells: int
    comments: list[str] = field(default_factory=list)


def is_notebook(path: Path) -> bool:
    """Return whether a path is that of a notebook, by its name."""
    return path.suffix == SUFFIX


def script_of(path: Path) -> Path:
    """Return the path of the script that a notebook is exported to; any other path as it is."""
    return path.with_suffix(".py") if is_notebook(path) else path


def export(notebook: Path) -> Export:
    """Return a notebook as a script. Raises SourceError where it cannot be one, or the script's place is taken."""
    cells = _code_cells(notebook)
    result = Export(script_of(notebook), "", len(cells))
    parts = [_python(cell, f"{notebook.name}, code cell {number}", result) for number, cell in enumerate(cells, 1)]
    names = {part.id for text in parts for part in walk(ast.parse(text)) if isinstance(part, ast.Name)}
    head = HEAD.format(name=notebook.name) + (DISPLAY if "display" in names else "")
    result.text = head + "".join(f"\n# %% {number}\n{part}\n" for number, part in enumerate(parts, 1))
    if result.path.exists() and read_file(result.path) != result.text.encode():
        raise SourceError(
            f"{result.path} is there, and is not what {notebook.name} is exported to: convert {result.path.name} "
            "itself, or move it away"
        )
    return result


def _code_cells(notebook: Path) -> list[str]:
    try:
        content = json.loads(read_file(notebook))
        language = content.get("metadata", {}).get("kernelspec", {}).get("language", "python")
        cells = [
            *content.get("cells", []),
            *(cell for sheet in content.get("worksheets", []) for cell in sheet["cells"]),
        ]
        code = [cell.get("source", cell.get("input", "")) for cell in cells if cell["cell_type"] == "code"]
        texts = ["".join(part) for part in code]
    except OSError as error:
        raise SourceError(f"{notebook}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SourceError(f"{notebook}: not a notebook ({error})") from error
    if language != "python":
        raise SourceError(f"{notebook}: a notebook in {language}, not in Python")
    return [text.rstrip() for text in texts if text.strip()]


def _python(cell: str, name: str, result: Export) -> str:
    """Return a cell with comments in the places of the lines that are not Python. Raises SourceError."""
    lines = cell.splitlines()
    if lines[0].startswith("%%"):
        is_python = lines[0].split()[0] in TIMED_CELLS
        count = 1 if is_python else len(lines)
        result.comments += [] if is_python else [f"{name}: {lines[0]}"]
        lines[:count] = [f"# {line}" for line in lines[:count]]
    while (wrong := _wrong_line(lines)) is not None:
        number, error = wrong
        line = lines[number].strip() if number < len(lines) else ""
        if not line.startswith(("%", "!", "?")) and not line.endswith("?"):
            raise SourceError(f"{name}: `{line}` is not Python ({error.msg}); write it in Python")
        indent = lines[number][: len(lines[number]) - len(lines[number].lstrip())]
        timed = next((mark for mark in TIMED if line.startswith(mark)), "")
        if not timed:
            result.comments.append(f"{name}: {line}")
        comment = f"pass  # {line}" if indent else f"# {line}"
        lines[number] = indent + (line[len(timed) :].lstrip() if timed else comment)
    return "\n".join(lines)


def _wrong_line(lines: list[str]) -> tuple[int, SyntaxError] | None:
    """Return the index of the line at which these lines are not Python; None if they are."""
    try:
        ast.parse("\n".join(lines))
    except SyntaxError as error:
        return max(0, (error.lineno or 1) - 1), error
    return None

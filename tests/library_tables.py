"""Count the tables of library names in the layers that read source: `python tests/library_tables.py [ROOT]`.

A table is an assignment at the top of a module whose sets, lists, tuples and dicts hold three or more texts that are
names: `"detach"`, `"torch.save"`. A name is dotted where it has a package, by itself or by the f-string that is made of
it: `{f"torch.{name}" for name in ("zeros", "ones")}`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LAYERS = ("analysis", "training", "rules")
CENTRAL = {"torch_api", "python_api.py"}
NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\.?")
DISPLAYS = (ast.Set, ast.List, ast.Tuple, ast.Dict)
FEWEST = 3
EXAMPLES = {"VALID", "INVALID"}


@dataclass(frozen=True)
class Table:
    """A table of `path`, with all its names and those of them that are dotted."""

    path: Path
    line: int
    title: str
    names: tuple[str, ...]
    dotted: tuple[str, ...]

    @property
    def is_central(self) -> bool:
        return not CENTRAL.isdisjoint(self.path.parts)


def tables_in(root: Path) -> Iterator[Table]:
    """Yield the tables of the layers under `root`/retrofit."""
    for layer in LAYERS:
        for path in sorted((root / "retrofit" / layer).rglob("*.py")):
            yield from tables_of(path)


def tables_of(path: Path) -> Iterator[Table]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if value is None or not isinstance(target, ast.Name) or target.id in EXAMPLES:
            continue
        names = tuple(_names(value))
        packaged = {name for part in ast.walk(value) if _adds_package(part) for name in _names(part)}
        dotted = tuple(name for name in names if "." in name.rstrip(".") or name in packaged)
        if len(names) >= FEWEST:
            yield Table(path, node.lineno, target.id, names, dotted)


def _names(value: ast.AST) -> Iterator[str]:
    """Yield the texts in sets, lists, tuples and dicts that are names."""
    for part in ast.walk(value):
        if isinstance(part, DISPLAYS):
            entries = [*part.keys, *part.values] if isinstance(part, ast.Dict) else part.elts
            texts = (entry.value for entry in entries if isinstance(entry, ast.Constant))
            yield from (text for text in texts if isinstance(text, str) and NAME.fullmatch(text))


def _adds_package(node: ast.AST) -> bool:
    """Return whether a comprehension, or a helper of the tables, puts a package before each name."""
    if isinstance(node, (ast.SetComp, ast.ListComp, ast.GeneratorExp)):
        parts = node.elt.values if isinstance(node.elt, ast.JoinedStr) else []
        return any(isinstance(part, ast.Constant) and "." in str(part.value) for part in parts)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.startswith("_of_")


def main(root: Path) -> None:
    tables = list(tables_in(root))
    for where, chosen in (
        ("in torch_api and python_api", [table for table in tables if table.is_central]),
        ("elsewhere", [table for table in tables if not table.is_central]),
        ("elsewhere, dotted", [table for table in tables if not table.is_central and len(table.dotted) >= FEWEST]),
    ):
        names = sum(len(table.names) for table in chosen)
        files = len({table.path for table in chosen})
        print(f"{where}: {len(chosen)} tables with {names} names in {files} files")
    for table in tables:
        if not table.is_central:
            print(f"  {table.path.relative_to(root)}:{table.line} {table.title}: {', '.join(table.names)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(__file__).resolve().parents[1])

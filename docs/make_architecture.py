"""Draw docs/architecture.svg from the imports, and write the table of folders in docs/architecture.md.

python docs/make_architecture.py           write both
python docs/make_architecture.py --check   exit with status 1 where one of them is not current
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- written by docs/make_architecture.py -->", "<!-- end -->"
KIT, PROJECT, RESULT = "#dbe9fb", "#fff3d6", "#dff2e1"  # fill of a box, by what it belongs to
# What is drawn: a package of the kit, or a file or folder of the repository; (column, row, fill, what it does).
PARTS = {
    "cli": (1.5, 0, KIT, "the command line"),
    "prove": (1.5, 1, KIT, "runs a conversion first"),
    "check": (0, 2, KIT, "lists what to change"),
    "convert": (1, 2, KIT, "changes it"),
    "verify": (2, 2, KIT, "compares the trainings"),
    "doctor": (3, 2, KIT, "examines the machine"),
    "rules": (1, 3, KIT, "one file per mistake"),
    "training": (1, 4, KIT, "facts of a training"),
    "analysis": (1, 5, KIT, "plain Python, read"),
    "distributed": (3, 4, KIT, "the runtime library"),
    "multigpu.py": (3, 5, RESULT, "the runtime file"),
    "train.py": (4.6, 0, PROJECT, "the script"),
    "utils.py": (4.6, 1, PROJECT, "what it is made of"),
    "segmentation": (4.6, 2, PROJECT, "models, data, losses"),
}
GENERATED = ("distributed", "multigpu.py")  # not an import: the file is made from the library
FRAMES = (  # (left, right, bottom, title) of what belongs together, in columns and rows
    (-0.48, 3.48, 5.42, "the kit: retrofit/"),
    (4.12, 5.08, 2.42, "the reference project"),
)
COLUMN, ROW, WIDTH, HEIGHT = 178, 96, 156, 48  # pixels: from box to box, of a box
LEFT, TOP = 100, 76  # pixels: the middle of the first box


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 where one is not current")
    args = parser.parse_args()
    new = {PAGE: with_table(PAGE.read_text(encoding="utf-8")), PICTURE: picture()}
    if args.check:
        return int(any(path.read_text(encoding="utf-8") != text for path, text in new.items()))
    for path, text in new.items():
        path.write_text(text, encoding="utf-8")
    return 0


def with_table(page: str) -> str:
    """Return the page with the table of folders between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """Return a row for every folder of the kit: what it is for, and what it imports."""
    edges = imports_between_parts()
    lines = ["| Folder | What is in it | Imports |", "|---|---|---|"]
    for folder in folders():
        name = folder.relative_to(ROOT / "retrofit").as_posix()
        about = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or "").split("\n")
        used = ", ".join(sorted(edges.get(name, ()))) if "/" not in name else ""
        lines.append(f"| `{name}/` | {about[0]} | {used} |")
    return "\n".join(lines) + "\n"


def folders() -> list[Path]:
    """Return the packages of the kit, each followed by those inside it."""
    return sorted(path.parent for path in (ROOT / "retrofit").glob("**/__init__.py") if path.parent.name != "retrofit")


def imports_between_parts() -> dict[str, set[str]]:
    """Return, for each of PARTS, which others it imports."""
    edges: dict[str, set[str]] = defaultdict(set)
    for part in PARTS:
        for path in files_of(part):
            for name in imported(path):
                top, _, rest = name.partition(".")
                other = rest.partition(".")[0] if top == "retrofit" else top if top in PARTS else f"{top}.py"
                if other in PARTS and other != part:
                    edges[part].add(other)
    return edges


def files_of(part: str) -> list[Path]:
    if part.endswith(".py"):
        return [path for path in (ROOT / part, ROOT / "retrofit" / part) if path.exists()]
    folder = ROOT / part if part == "segmentation" else ROOT / "retrofit" / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]


def imported(path: Path) -> set[str]:
    """Return the full names of the modules that a file imports."""
    package = list(path.relative_to(ROOT).parent.parts)
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return names


def picture() -> str:
    """Return the parts as boxes, with an arrow from each to what it imports, as SVG."""
    edges = imports_between_parts()
    right, bottom = max(frame[1] for frame in FRAMES), max(frame[2] for frame in FRAMES)
    width, height = middle(right + 0.12, bottom + 0.16)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" text-anchor="middle">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667788"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *(around(*one) for one in FRAMES),
    ]
    for part, others in sorted(edges.items()):
        lines += [arrow(part, other) for other in sorted(others - reached_further(edges, others))]
    lines += [arrow(*GENERATED, dash="5 4"), *(box(part) for part in PARTS), "</svg>"]
    return "\n".join(lines) + "\n"


def middle(column: float, row: float) -> tuple[int, int]:
    """Return the pixel in the middle of a box."""
    return round(LEFT + column * COLUMN), round(TOP + row * ROW)


def around(left: float, right: float, bottom: float, title: str) -> str:
    (x, y), (end, low) = middle(left, -0.42), middle(right, bottom)
    shape = f'<rect x="{x}" y="{y}" width="{end - x}" height="{low - y}" rx="8" fill="none" stroke="#bcc6d0"/>'
    return f'{shape}<text x="{(x + end) // 2}" y="{y - 8}" font-size="14" fill="#445566">{title}</text>'


def arrow(part: str, other: str, dash: str = "none") -> str:
    (x, y), (end, low) = (middle(*PARTS[name][:2]) for name in (part, other))
    line = f'x1="{x}" y1="{y + HEIGHT // 2}" x2="{end}" y2="{low - HEIGHT // 2}"'
    return f'<line {line} stroke="#667788" stroke-dasharray="{dash}" marker-end="url(#head)"/>'


def box(part: str) -> str:
    column, row, fill, about = PARTS[part]
    x, y = middle(column, row)
    place = f'x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}"'
    name = f'<text x="{x}" y="{y - 3}" font-size="15" font-weight="bold" fill="#223344">{part}</text>'
    line = f'<text x="{x}" y="{y + 15}" font-size="12" fill="#445566">{about}</text>'
    return f'<rect {place} rx="5" fill="{fill}" stroke="#445566"/>{name}{line}'


def reached_further(edges: dict[str, set[str]], parts: set[str]) -> set[str]:
    """Return what parts import, directly and through others."""
    found: set[str] = set()
    waiting = list(parts)
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


if __name__ == "__main__":
    sys.exit(main())

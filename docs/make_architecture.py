"""Draw docs/architecture.svg from the imports, and write the table of folders in docs/architecture.md.

python docs/make_architecture.py           write both
python docs/make_architecture.py --check   exit with status 1 where the page is not current
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE, PICTURE = ROOT / "docs" / "architecture.md", ROOT / "docs" / "architecture.svg"
BEGIN, END = "<!-- written by docs/make_architecture.py -->", "<!-- end -->"
# What is drawn, by row from the top; a name is a package of the kit, or a file or folder of the repository.
ROWS = (
    ("cli", "train.py"),
    ("check", "convert", "verify", "doctor", "utils.py"),
    ("rules", "segmentation"),
    ("training", "distributed"),
    ("analysis", "multigpu.py"),
)
GENERATED = ("distributed", "multigpu.py")  # not an import: the file is made from the library


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 where the page is not current"
    )
    args = parser.parse_args()
    text = with_table(PAGE.read_text(encoding="utf-8"))
    if args.check:
        return int(text != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(text, encoding="utf-8")
    draw(imports_between_parts())
    return 0


def with_table(page: str) -> str:
    """Return the page with the table of folders between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}{END}{rest.partition(END)[2]}"


def table() -> str:
    """Return a row for every folder of the kit: its files, its lines, what it is for, and what it imports."""
    edges = imports_between_parts()
    lines = ["| Folder | Entries | Lines | What is in it | Imports |", "|---|---|---|---|---|"]
    for folder in folders():
        name = folder.relative_to(ROOT / "retrofit").as_posix()
        entries = [path for path in folder.iterdir() if path.name not in ("__init__.py", "__pycache__")]
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py"))
        about = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))) or "").split("\n")[
            0
        ]
        used = ", ".join(sorted(edges.get(name, ()))) if "/" not in name else ""
        lines.append(f"| `{name}/` | {len(entries)} | {count} | {about} | {used} |")
    return "\n".join(lines) + "\n"


def folders() -> list[Path]:
    """Return the packages of the kit, each followed by those inside it."""
    return sorted(path.parent for path in (ROOT / "retrofit").glob("**/__init__.py") if path.parent.name != "retrofit")


def imports_between_parts() -> dict[str, set[str]]:
    """Return, for each part of ROWS, which others it imports."""
    parts = {part for row in ROWS for part in row}
    edges: dict[str, set[str]] = defaultdict(set)
    for part in parts:
        for path in files_of(part):
            for name in imported(path):
                top, _, rest = name.partition(".")
                other = rest.partition(".")[0] if top == "retrofit" else top if top in parts else f"{top}.py"
                if other in parts and other != part:
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


def draw(edges: dict[str, set[str]]) -> None:
    """Draw the parts as boxes in rows, with an arrow from each to what it imports."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "retrofit", "font.size": 11})
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6.2))
    places = {}
    for y, row in enumerate(ROWS):
        kit = [part for part in row if not is_project(part)]
        for x, part in enumerate(kit):
            places[part] = (6.2 * (x + 0.5) / len(kit), -y)
        places.update({part: (8.0, -y) for part in row if is_project(part)})
    boxes = {}
    for part, place in places.items():
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files_of(part))
        face = "#fff3d6" if is_project(part) else "#dbe9fb"
        box = {"boxstyle": "round,pad=0.45", "facecolor": face, "edgecolor": "#456"}
        text = axes.text(*place, f"{part}\n{lines:,} lines", ha="center", va="center", bbox=box, zorder=3)
        boxes[part] = text.get_bbox_patch()
    for part, others in sorted(edges.items()):
        for other in sorted(others - {further for one in others for further in reached(edges, one)}):
            arrow(axes, places, boxes, (part, other), "-")
    arrow(axes, places, boxes, GENERATED, "--")
    axes.text(3.1, 0.62, "the kit: retrofit/", ha="center", color="#456")
    axes.text(8.0, 0.62, "the reference project", ha="center", color="#456")
    axes.text(8.0, -4.55, "what a converted project gets", ha="center", color="#456", fontsize=9)
    axes.set(xlim=(-0.3, 9.2), ylim=(-4.8, 0.9))
    axes.axis("off")
    figure.savefig(PICTURE, bbox_inches="tight", metadata={"Date": None}, facecolor="white")


def is_project(part: str) -> bool:
    return part.endswith(".py") or part == "segmentation"


def reached(edges: dict[str, set[str]], part: str) -> set[str]:
    """Return what a part imports, directly and through others."""
    found: set[str] = set()
    waiting = [part]
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return found


def arrow(axes: Any, places: dict[str, tuple[float, float]], boxes: dict[str, Any], ends: Any, style: str) -> None:
    start, end = ends
    properties = {"arrowstyle": "-|>", "color": "#667788", "linestyle": style, "lw": 1.1}
    properties.update(patchA=boxes[start], patchB=boxes[end], shrinkA=2, shrinkB=2)
    axes.annotate("", xy=places[end], xytext=places[start], arrowprops=properties, zorder=1)


if __name__ == "__main__":
    sys.exit(main())

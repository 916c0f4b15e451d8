"""The figures of rank 0's share that a converted project lists in its MULTI_GPU.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGES = "MULTI_GPU*.md"  # one for each script that was converted
PART = re.compile(r"^- \*\*Figures of rank 0's share\.\*\*(.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
# "  - `train.py:12`: `loss`, is printed; `:15`: `log`, is saved": the places of one file may share a line.
PLACE = re.compile(r"(?:^  - |; )`([^`:\n]*):(\d+)`: ", re.MULTILINE)


def listed_figures(project: Path) -> frozenset[str]:
    """Return the places, as `file:line`, that the pages of a project list as figures of rank 0's share."""
    pages = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(project.glob(PAGES))]
    found: set[str] = set()
    for part in [match[1] for page in pages for match in PART.finditer(page)]:
        path = ""
        for place in PLACE.finditer(part):
            path = place[1] or path
            found.add(f"{path}:{place[2]}")
    return frozenset(found)

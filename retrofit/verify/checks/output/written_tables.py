"""Tables that a script writes about its samples (predictions with names), against those of one process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import Run

from .written_figures import OF_ONE_RANK

FEWEST = 4  # rows
DIGITS = 6  # of a number that are compared
Row = tuple[str, ...]


def table_fault(many: Run, reference: Run) -> Finding | None:
    """Return the first table of rank 0 whose columns do not belong together, or that has the rows of its share alone.

    What ranks have computed for their shares has to come back in the order of the samples: rank after rank it is
    another one.
    """
    for path, text in many.texts.items():
        if path not in reference.texts or OF_ONE_RANK.search(path):
            continue
        ours, theirs = _rows(text), _rows(reference.texts[path])
        fault = _of_share(path, ours, theirs, many.world_size) or _in_other_order(path, ours, theirs)
        if fault is not None:
            return fault
    return None


def _rows(text: str) -> list[Row]:
    """Return the lines with the most common number of fields, as they are compared."""
    rows = [tuple(map(_compared, re.split("[,\t;]", line))) for line in text.splitlines() if line.strip()]
    width = Counter(map(len, rows)).most_common(1)[0][0] if rows else 0
    return [row for row in rows if len(row) == width]


def _compared(field: str) -> str:
    try:
        return f"{float(field):.{DIGITS}g}"
    except ValueError:
        return field.strip()


def _of_share(path: str, ours: Sequence[Row], theirs: Sequence[Row], world_size: int) -> Finding | None:
    is_part = len(theirs) >= FEWEST and len(ours) < len(theirs) and not Counter(ours) - Counter(theirs)
    if not is_part or len(set(theirs)) < len(theirs) or abs(len(ours) * world_size - len(theirs)) > world_size:
        return None
    value = f"{len(ours)} rows with {world_size} processes, {len(theirs)} with 1"
    return Finding(f"{path} has the samples of rank 0's share only", "RF401", value=value)


def _in_other_order(path: str, ours: Sequence[Row], theirs: Sequence[Row]) -> Finding | None:
    if len(ours) != len(theirs) or len(ours) < FEWEST or len(ours[0]) != len(theirs[0]):
        return None
    columns = list(zip(zip(*ours), zip(*theirs)))
    moved = [place for place, (a, b) in enumerate(columns) if a != b and Counter(a) == Counter(b) and len(set(a)) > 1]
    keys = [place for place, (a, b) in enumerate(columns) if a == b and len(set(a)) == len(a)]
    if not moved or not (keys or len(columns) == 1):
        return None
    a, b = columns[moved[0]]
    row = next(number for number, (one, other) in enumerate(zip(a, b)) if one != other)
    row_key = f" of {columns[keys[0]][0][row]}" if keys else ""
    summary = f"column {moved[0] + 1} of {path} has the values of one process in another order"
    return Finding(summary, "RF401", value=f"row {row + 1}: {a[row]}{row_key} with several processes, {b[row]} with 1")

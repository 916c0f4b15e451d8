"""Record which lines of the script are run, of those that the run was asked to watch."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from ..events import LineRun, Record


def watch_lines(record: Record, project: str, watched: Mapping[str, Sequence[int]]) -> None:
    """Record each watched line once, when it is run first; `watched`: lines from 1, by paths in the project.

    Only calls of functions that hold such a line are followed line by line. When all lines were run nothing is
    followed any more.
    """
    left = {os.path.realpath(os.path.join(project, path)): set(lines) for path, lines in watched.items()}
    names = {os.path.realpath(os.path.join(project, path)): path for path in watched}
    files: dict[str, str] = {}  # by the name in a code object

    def of_line(frame: FrameType, event: str, argument: Any) -> Any:
        place = files[frame.f_code.co_filename]
        if event == "line" and frame.f_lineno in left[place]:
            left[place].discard(frame.f_lineno)
            record(LineRun(names[place], frame.f_lineno))
            if not any(left.values()):
                sys.settrace(None)
        return of_line if left[place] else None

    def of_call(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in files:
            files[name] = os.path.realpath(name)
        lines = left.get(files[name])
        if not lines:
            return None
        held = {line for _, _, line in frame.f_code.co_lines()} if hasattr(frame.f_code, "co_lines") else lines
        return of_line if held & lines else None

    if any(left.values()):
        sys.settrace(of_call)

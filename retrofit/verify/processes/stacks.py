"""The line of the project that a process which hangs is in, read from a dump of its stacks."""

from __future__ import annotations

import os
import re

from retrofit.verify.trace.runtime import is_in_runtime

HEADING = re.compile(r"^(Current thread 0x|Thread 0x|Stack \().*most recent call first")
FRAME = re.compile(r'^\s*File "(?P<file>.*)", line (?P<line>\S+) in (?P<function>.*)$')
ESCAPE = re.compile(r"\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\U[0-9a-f]{8}")


def stack_summary(stack_text: str, project: str) -> str | None:
    """Return the innermost line of the project in a faulthandler dump, as `train.py:123 in train_one_epoch`.

    Read from the thread that took the signal, else from the main thread. A copy of the runtime and an environment
    inside the project are not where a reader looks: such a line is the answer only where there is no other,
    respectively never. None when no line of the project is running.
    """
    threads = _threads(stack_text)
    current = [frames for heading, frames in threads if heading.startswith(("Current", "Stack"))]
    main = [frames for _, frames in threads[-1:]]  # faulthandler lists the newest thread first
    for frames in [*current[-1:], *main]:
        inside = [(path, line, function) for file, line, function in frames if (path := _in_project(file, project))]
        own = [frame for frame in inside if not is_in_runtime(frame[0], project)]
        for path, line, function in [*own[:1], *inside[:1]]:
            return f"{path}:{line} in {function}"
    return None


def _threads(stack_text: str) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """Return (heading, [(file, line, function), ...]) of every thread, innermost frame first."""
    threads: list[tuple[str, list[tuple[str, str, str]]]] = []
    for line in stack_text.splitlines():
        frame = FRAME.match(line)
        if HEADING.match(line):
            threads.append((line, []))
        elif frame and threads:
            threads[-1][1].append((_unescape(frame["file"]), frame["line"], _unescape(frame["function"])))
    return threads


def _in_project(file: str, project: str) -> str | None:
    """Return `file` relative to the project, or None when it lies outside or in an environment inside."""
    if file.startswith("<"):  # <frozen runpy>, <string>
        return None
    path = os.path.normpath(os.path.join(project, file))
    for root in (os.path.abspath(project), os.path.realpath(project)):
        if path.startswith(os.path.join(root, "")):
            relative = os.path.relpath(path, root)
            return None if "site-packages" in relative.split(os.sep) else relative
    return None


def _unescape(text: str) -> str:
    # faulthandler can only write ASCII.
    return ESCAPE.sub(lambda found: chr(int(found.group()[2:], 16)), text)

"""Errors of retrofit itself: a message that says at which place and in which rule, and a file with the traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback
from types import TracebackType

MOST_CHARACTERS = 200  # of an error's own text


def report(command: str, error: Exception) -> None:
    """Say on the standard error that retrofit failed, on what, and what to do."""
    from retrofit.analysis.deep_stack import place_read_last
    from retrofit.analysis.files.source import printable

    what = " ".join(f"{type(error).__name__}: {error}".split())
    what = what if len(what) <= MOST_CHARACTERS else f"{what[:MOST_CHARACTERS]}..."
    place, rule = place_read_last(error.__traceback__), _rule_of(error.__traceback__)
    text = f"retrofit {command}: error: {place}this is an error of retrofit{rule} ({what}); nothing was written"
    print(printable(text), file=sys.stderr)
    print(f"{_keep(error)}; write the code of that place in another way, or convert by hand", file=sys.stderr)


def _rule_of(trace: TracebackType | None) -> str:
    """Return " in RF103 loader-not-sharded" for the rule that was at work last, nothing outside the rules."""
    found = ""
    while trace is not None:
        rule = trace.tb_frame.f_globals.get("RULE")
        if rule is not None:
            found = f" in {rule.code} {rule.name}"
        trace = trace.tb_next
    return found


def _keep(error: Exception) -> str:
    """Write the traceback to a file and say where; print it where no file can be written."""
    lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        with tempfile.NamedTemporaryFile("w", prefix="retrofit-error-", suffix=".txt", delete=False) as file:
            file.write(lines.encode(errors="backslashreplace").decode())
    except OSError:
        sys.stderr.write(lines)
        return "report it with the traceback above"
    return f"report it with the traceback, which is in {file.name}"

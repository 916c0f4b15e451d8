"""Lines that the script prints, its curves and its argument parsers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO

from retrofit.verify.trace.events import OutputLine, Record
from retrofit.verify.trace.recorder import own_errors_recorded

from .parser import install_parser
from .place import place_of_caller
from .scalars import install_scalars

MOST_CHARACTERS = 500
COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")  # and other signs to a terminal


def install_output(record: Record, project: str) -> None:
    """Record lines on stdout and stderr, scalars and argument parsers from now on.

    What keeps the streams that were there before (a logging handler of an earlier import) is not seen.
    """
    sys.stdout = RecordedStream(sys.stdout, "stdout", record, project)  # type: ignore[assignment]
    sys.stderr = RecordedStream(sys.stderr, "stderr", record, project)  # type: ignore[assignment]
    install_scalars(record, project)
    install_parser(record)


class RecordedStream:
    """A text stream that passes everything through and records an OutputLine for each whole line.

    Not recorded: blank lines, and those with a carriage return, which progress bars draw over.
    """

    def __init__(self, stream: TextIO, name: str, record: Record, project: str) -> None:
        self._stream, self._project = stream, project
        self._name = name
        self._record = record
        self._begun = ""

    def write(self, text: str) -> int:
        count = self._stream.write(text)
        with own_errors_recorded():
            self._note(text)
        return count

    def _note(self, text: str) -> None:
        # No lock: one that another thread holds would stay locked in a process that is forked meanwhile.
        *lines, self._begun = (self._begun + text).split("\n")
        for line in (COLOUR.sub("", line) for line in lines):
            if line.strip() and "\r" not in line:
                self._record(OutputLine(line[:MOST_CHARACTERS], self._name, place_of_caller(self._project)))
        if len(self._begun) > MOST_CHARACTERS:  # a bar without any line end must not grow here
            self._begun = "\r" * ("\r" in self._begun) + self._begun[:MOST_CHARACTERS]

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Any:
        return iter(self._stream)

    def __enter__(self) -> RecordedStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *exception: Any) -> Any:
        return self._stream.__exit__(*exception)

"""Figures of evaluations that a script writes to text files of its own: CSV, JSON, lines with words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from retrofit.distributed.failure.shown_figures import OF_THE_MODEL, RELATIVE
from retrofit.verify.evidence import Run

from .printed_numbers import NUMBER, OF_TRAINING, Value, after_evaluations, values_of_line

OF_EVALUATION = re.compile(r"\b(\w*_)?(val|valid|validation|test|eval|dev|heldout)(_\w*)?\W*$", re.IGNORECASE)
OF_LOSS = re.compile(r"loss\W*$", re.IGNORECASE)  # of a batch, where no word says that it is of an evaluation
OF_ONE_RANK = re.compile(r"rank|proc|worker", re.IGNORECASE)  # in the name of a file


def figures_in_files(run: Run) -> dict[str, list[Value]]:
    """Return what is in the files that rank 0 has written, by file and name, where it is one for each evaluation.

    A file that is written once more each time holds the last one alone. What comes more often may be of training
    steps or of samples, and is left out.
    """
    steps = after_evaluations(run.main)
    found: dict[str, list[Value]] = {}
    for path, text in run.texts.items():
        if OF_ONE_RANK.search(path) or not steps:
            continue
        of_file: dict[str, list[Value]] = {}
        for line in _named_lines(text):
            for words, value in values_of_line(line):
                name = words.split(",")[-1].strip(" \t:=\"'{}[]")
                if _is_figure(words):
                    # All digits are written: those that sums in float32 leave open, too.
                    rounding = max(value.rounding, RELATIVE * abs(value.number))
                    figure = replace(value, name=f"{path}: {name}", label=f"{name} in {path}", rounding=rounding)
                    of_file.setdefault(name, []).append(figure)
        for values in of_file.values():
            if len(values) in (1, len(steps)):
                found[values[0].name] = [replace(a, step=step) for a, step in zip(values, steps[-len(values) :])]
    return found


def _is_figure(words: str) -> bool:
    if OF_TRAINING.search(words) or not re.search(r"[^\W\d]", words):
        return False
    return bool(OF_EVALUATION.search(words) or (OF_THE_MODEL.search(words) and not OF_LOSS.search(words)))


def _named_lines(text: str) -> Iterator[str]:
    """Yield the lines of a file; those of a table with the names of its columns before the numbers."""
    names: list[str] = []
    for line in text.splitlines():
        fields = re.split("[,\t]", line)
        if not NUMBER.search(line):
            names = [field.strip(" \"'") for field in fields]
        if len(names) > 1 and len(fields) == len(names) and not re.search("[:=]", line):
            yield ", ".join(f"{name}: {field}" for name, field in zip(names, fields))
        else:
            yield line

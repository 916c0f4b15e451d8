"""Figures of evaluations that a script writes to text files of its own: CSV, JSON, lines with words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from retrofit.distributed.failure.shown_figures import OF_THE_MODEL, RELATIVE
from retrofit.verify.evidence import Run

from .printed_numbers import NUMBER, OF_TRAINING, Value, after_evaluations, values_of_line

OF_EVALUATION = re.compile(r"\b(\w*_)?(val|valid|validation|test|eval|dev|heldout)(_\w*)?\W*$", re.IGNORECASE)
OF_LOSS = re.compile(r"loss\W*$", re.IGNORECASE)  # of a batch, where no word says that it is of an evaluation
FEWEST_EPOCHS = 2  # a figure that comes once in the run may be of anything
OF_ONE_RANK = re.compile(r"rank|proc|worker", re.IGNORECASE)  # in the name of a file


def figures_in_files(run: Run) -> dict[str, list[Value]]:
    """Return what is in the files that rank 0 has written, by file and name, where it is one for each evaluation.

    A file that is written once more each time holds the last one alone. What comes more often may be of training
    steps or of samples, and is left out.
    """
    return _in_files(run, after_evaluations(run.main), _is_figure, may_be_last=True)


def training_figures_in_files(run: Run) -> dict[str, list[Value]]:
    """Return the figures of the training in the files that rank 0 has written, where there is one for each epoch."""
    ends = [epoch.end.step for epoch in run.main.epochs if epoch.end is not None]
    return _in_files(run, ends, _is_of_training, may_be_last=False) if len(ends) >= FEWEST_EPOCHS else {}


def _in_files(
    run: Run, steps: Sequence[int], is_figure: Callable[[str], bool], may_be_last: bool
) -> dict[str, list[Value]]:
    found: dict[str, list[Value]] = {}
    for path, text in run.texts.items():
        if OF_ONE_RANK.search(path) or not steps:
            continue
        of_file: dict[str, list[Value]] = {}
        for line in _named_lines(text):
            for words, value in values_of_line(line):
                name = words.split(",")[-1].strip(" \t:=\"'{}[]")
                if is_figure(words):
                    # All digits are written: those that sums in float32 leave open, too.
                    rounding = max(value.rounding, RELATIVE * abs(value.number))
                    figure = replace(value, name=f"{path}: {name}", label=f"{name} in {path}", rounding=rounding)
                    of_file.setdefault(name, []).append(figure)
        for values in of_file.values():
            if len(values) == len(steps) or (may_be_last and len(values) == 1):
                found[values[0].name] = [replace(a, step=step) for a, step in zip(values, steps[-len(values) :])]
    return found


def _is_figure(words: str) -> bool:
    if OF_TRAINING.search(words) or not re.search(r"[^\W\d]", words):
        return False
    return bool(OF_EVALUATION.search(words) or (OF_THE_MODEL.search(words) and not OF_LOSS.search(words)))


def _is_of_training(words: str) -> bool:
    return bool(OF_TRAINING.search(words) and OF_THE_MODEL.search(words))


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

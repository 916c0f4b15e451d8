"""What a conversion leaves to know, in words: figures of one rank, numbers of steps. For terminal and MULTI_GPU.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retrofit.rules import Finding
from retrofit.rules.rewriting import ChangedFile
from retrofit.training.step_limits import StepLimit

NOTHING = "**Figures.** None was found that is of one process's share of the samples."
HEAD = """\
**Figures of rank 0's share.** These places, in the converted files, show, keep or decide by something that is
computed from the samples of one process, not from all of them:
"""


STEPS = """\

**Steps, not epochs.** These places, in the converted files, end the training after a number of steps. In the default
mode N processes see N times the samples in as many steps: a longer training, not a faster one. For the same training
in less time keep the total batch (`RETROFIT_BATCH=global`), or divide the number, and the steps that the schedule of
the learning rate counts, by `WORLD_SIZE`:

"""


def steps(limits: Sequence[StepLimit], files: Sequence[ChangedFile]) -> str:
    """Return the part of MULTI_GPU.md about trainings that count steps; "" for others."""
    texts = {file.source.name: file.text for file in files}
    if not limits:
        return ""
    return STEPS + "".join(
        f"- `{limit.place.path}:{_line_of(limit, texts.get(limit.place.path, ''))}`: counts steps, `{limit.bound}`\n"
        for limit in limits
    )


def _line_of(limit: StepLimit, text: str) -> int:
    """Return the line of a place in the changed text of its file."""
    same = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == limit.source_line.strip()]
    return min(same, key=lambda number: abs(number - limit.place.line), default=limit.place.line)


def lines(listed: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each figure of one rank; places are those in the converted files."""
    if listed:
        yield "figures of one rank, by their lines in the converted files:"
        yield from (f"{finding.place.path}:{finding.place.line}: {finding.message}" for finding in listed)


def figures(listed: Sequence[Finding]) -> str:
    """Return the part of MULTI_GPU.md about figures of one rank."""
    if not listed:
        return NOTHING
    return "\n".join([HEAD, *(f"- `{f.place.path}:{f.place.line}`: {_figure(f)}" for f in listed)])


def _figure(finding: Finding) -> str:
    """Return what a figure is, as text that Markdown does not take for markup."""
    message = finding.message.partition(": ")[2] or finding.message
    name, comma, verb = message.rpartition(", ")
    quoted = name.replace("`", "'")
    return f"`{quoted}`, {verb}" if comma else message

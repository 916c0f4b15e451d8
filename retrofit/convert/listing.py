"""Lists for the user of a conversion: figures of one rank, numbers of steps. For terminal and MULTI_GPU.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from retrofit.rules.edits.rewrite import ChangedFile
from retrofit.rules.finding import Finding
from retrofit.training.steps.counted.step_limits import StepLimit
from retrofit.training.steps.counted.step_schedules import StepSchedule

from .assumptions import Assumption

HEAD = """\
- **Figures of rank 0's share.** These places, in the converted files, show, keep or decide by something that is
  computed from the samples of one process, not from all of them, or that each process draws at random for its own:
"""
STEPS = """\
- **Steps, not epochs.** These places end the training after a number of steps. In the default mode N processes see N
  times the samples in as many steps: a longer training, not a faster one. For the same training in less time keep the
  total batch (`RETROFIT_BATCH=global`), or divide the number, and the steps of the schedule, by `WORLD_SIZE`:
"""
SCHEDULES = """\
- **Schedules that count batches.** In the default mode N processes make 1/N of the batches in an epoch, so these
  change the learning rate, or the weight of a loss, N times later. For the schedule of one process keep the total batch
  (`RETROFIT_BATCH=global`), or divide their numbers by `WORLD_SIZE`:
"""
NOT_FOLLOWED = """\
- **Losses that were not read to their end.** From these places, before the conversion, nothing is known of a loss:
"""
UNPROVEN = """\
- **Assumed, not proven.** The conversion is right if this holds; the runs of `--prove` did not come to these places:
"""


def not_followed(losses: Sequence[str]) -> str:
    """Return the part of MULTI_GPU.md about losses that are too long to be read to their end; "" for none."""
    return "".join([NOT_FOLLOWED, *(f"  - {line}\n" for line in losses)]) if losses else ""


def unproven(assumptions: Sequence[Assumption]) -> str:
    """Return the part of MULTI_GPU.md about what no run has shown; "" for nothing."""
    lines = [f"  - `{one.place.path}:{one.place.line}` (before the conversion): {one.text}\n" for one in assumptions]
    return "".join([UNPROVEN, *lines]) if lines else ""


def steps(limits: Sequence[StepLimit], schedules: Sequence[StepSchedule], files: Sequence[ChangedFile]) -> str:
    """Return the part of MULTI_GPU.md about what counts steps: the end of a training, schedules; "" for neither."""
    ends = [f"  - {_place(limit, files)}: counts steps, `{limit.bound}`\n" for limit in limits]
    counting = [f"  - {_place(schedule, files)}: `{schedule.schedule}`\n" for schedule in schedules]
    return "".join([*([STEPS] if ends else []), *ends, *([SCHEDULES] if counting else []), *counting])


def _place(counting: StepLimit | StepSchedule, files: Sequence[ChangedFile]) -> str:
    """Return a place as it is in the changed text of its file."""
    path, first = counting.place.path, counting.place.line
    text = next((file.text for file in files if file.source.name == path), "")
    same = [number for number, line in enumerate(text.splitlines(), 1) if line.strip() == counting.source_line.strip()]
    return f"`{path}:{min(same, key=lambda number: abs(number - first), default=first)}`"


def lines(listed: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each figure of one rank; places are those in the converted files."""
    if listed:
        yield "figures of one rank, by their lines in the converted files:"
        yield from (f"{finding.place.path}:{finding.place.line}: {finding.message}" for finding in listed)


def figures(listed: Sequence[Finding]) -> str:
    """Return the part of MULTI_GPU.md about figures of one rank; "" for none."""
    lines = [f"  - `{f.place.path}:{f.place.line}`: {_figure(f)}\n" for f in listed]
    return "".join([HEAD, *lines]) if lines else ""


def _figure(finding: Finding) -> str:
    """Return what a figure is, as text that Markdown does not take for markup."""
    message = finding.message.partition(": ")[2] or finding.message
    name, comma, verb = message.rpartition(", ")
    quoted = name.replace("`", "'")
    return f"`{quoted}`, {verb}" if comma else message

"""The verdict of one check, the report of all of them, and its conclusion."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule

PASS = "PASS"
FAIL = "FAIL"
NOT_APPLICABLE = "NOT APPLICABLE"
ACCEPTED = "ACCEPTED"  # a FAIL that the user suppresses (--accept CHECK)
INTERNAL_ERROR = "INTERNAL ERROR"  # verify itself failed: nothing is said of the script
STATUSES = (PASS, FAIL, NOT_APPLICABLE, ACCEPTED, INTERNAL_ERROR)
# Of a whole report only:
INCOMPLETE = "INCOMPLETE"  # nothing failed, and something that a PASS needs was not compared
NOT_JUDGED = "NOT JUDGED"  # no check had anything to judge
# What a PASS needs: the checks that compare it, and its name.
COMPARED = {"shards": "samples", "loss": "losses", "gradients": "gradients", "parameters": "weights"}
EXIT_STATUS = {PASS: 0, FAIL: 1, NOT_JUDGED: 2, INCOMPLETE: 3, INTERNAL_ERROR: 4}


@dataclass(frozen=True)
class Verdict:
    """What one check found."""

    check: str  # "shards": what --accept takes
    title: str  # the claim: "shards are disjoint and complete"
    status: str  # one of STATUSES
    summary: str  # one sentence with numbers: what was found
    step: int | None = None  # first optimizer step (0-based) where it broke
    value: str | None = None  # the values there: "loss 1.2345 with 2 processes, 1.2201 with 1"
    cause: str | None = None  # a key of retrofit.rules.catalog.CATALOG: "RF103"
    note: str | None = None  # what was controlled, or could not be judged
    place: str | None = None  # the line of the script that shows it: "train.py:12 in main"

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status


def passed(check: str, title: str, summary: str, note: str | None = None) -> Verdict:
    """Return a PASS."""
    return Verdict(check, title, PASS, summary, note=note)


def not_applicable(check: str, title: str, summary: str, note: str | None = None) -> Verdict:
    """Return a NOT APPLICABLE; `summary` says why the check has nothing to judge."""
    return Verdict(check, title, NOT_APPLICABLE, summary, note=note)


def failed(
    check: str,
    title: str,
    summary: str,
    *,
    step: int | None = None,
    value: str | None = None,
    cause: str | None = None,
    note: str | None = None,
    place: str | None = None,
) -> Verdict:
    """Return a FAIL."""
    return Verdict(check, title, FAIL, summary, step, value, cause, note, place)


def internal_error(check: str, summary: str, error: str, trace: str) -> Verdict:
    """Return an INTERNAL ERROR; `trace`: the traceback, for a report of it."""
    return Verdict(check, "retrofit verify itself works", INTERNAL_ERROR, summary, value=error, note=trace)


@dataclass(frozen=True)
class EpochCoverage:
    """Which rank drew which sample in one epoch; a sample drawn twice by one rank is in its list twice."""

    num_samples: int
    rank_of_sample: dict[int, list[int]]  # rank -> sorted sample indices


@dataclass(frozen=True)
class RunRecord:
    """One run of the user's script, for the reader."""

    name: str  # "many"
    world_size: int
    seconds: float
    status: str  # "finished", "stopped after 40 steps", "failed: exit status 1", ...
    command: str  # environment variables and command line, as a shell would take them


@dataclass(frozen=True)
class Report:
    """Everything that `retrofit verify` found; terminal, JSON and HTML page are three views of it."""

    script: str
    arguments: Sequence[str]
    world_size: int
    verdicts: Sequence[Verdict]
    # Per optimizer step: loss_1, loss_n, difference (relative, of the loss), parameter_difference (relative), lr_1,
    # lr_n; one number: tolerance. A curve whose run failed is empty or missing.
    curves: Mapping[str, Sequence[float] | float] = field(default_factory=dict)
    coverage: Sequence[EpochCoverage] = ()
    runs: Sequence[RunRecord] = ()
    environment: Mapping[str, object] = field(default_factory=dict)  # python, torch, device, cores, ...
    controls: Sequence[str] = ()  # what was made comparable, one sentence each
    seconds: float = 0.0
    module: str = ""  # the script was started as `python -m module`
    lines_run: Sequence[Sequence[str | int]] = ()  # by several processes, of the watched ones: [path, line]
    own_figures: Sequence[str] = ()  # what rank 0 prints or logs of its own share, where the training is the same
    dialect: str = ""  # what distributes the script, a key of DIALECTS; "" = the runtime
    precision: str = "float64"  # in which the runs were compared, or "as-is"
    kept_batch: str = ""  # what keeps the global batch in the compared runs, where a plain start has a larger one
    made: Mapping[str, str] = field(default_factory=dict)  # the date, the kit's version, the project's commit
    repair: Mapping[str, object] | None = None  # what --fix did, see json_report.py; None without it

    @property
    def command(self) -> str:
        """The user's command line, quoted as a shell would take it."""
        script = ["-m", self.module] if self.module else [self.script]
        return shlex.join([*script, *self.arguments])


def exit_status(verdicts: Sequence[Verdict]) -> int:
    """Return the exit status of the command: see EXIT_STATUS."""
    return EXIT_STATUS[overall_status(verdicts)]


def overall_status(verdicts: Sequence[Verdict]) -> str:
    """Return PASS, FAIL, INCOMPLETE (see `not_compared`), or NOT JUDGED when no check had anything to judge.

    INTERNAL ERROR where verify itself failed, whatever the checks say: what they found may follow from it.
    """
    statuses = {verdict.status for verdict in verdicts}
    for status in (INTERNAL_ERROR, FAIL):
        if status in statuses:
            return status
    if not statuses & {PASS, ACCEPTED}:
        return NOT_JUDGED
    return INCOMPLETE if not_compared(verdicts) else PASS


def not_compared(verdicts: Sequence[Verdict]) -> dict[str, str]:
    """Return what a PASS needs and no check compared, each with the reason: {"samples": "no training loader ..."}."""
    by_check = {verdict.check: verdict for verdict in verdicts}
    missing = {}
    for check, name in COMPARED.items():
        if check not in by_check:
            missing[name] = "the check was not made"
        elif by_check[check].status == NOT_APPLICABLE:
            missing[name] = by_check[check].summary
    return missing


def listed(names: Iterable[str]) -> str:
    """Return "samples, losses and weights"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def counts(verdicts: Sequence[Verdict]) -> str:
    """Return "14 checks passed, 2 not applicable"; what does not occur is left out."""
    number = {status: sum(verdict.status == status for verdict in verdicts) for status in STATUSES}
    words = ((FAIL, "failed"), (PASS, "passed"), (ACCEPTED, "accepted"), (NOT_APPLICABLE, "not applicable"))
    parts = [(number[status], word) for status, word in words if number[status]]
    if not parts:
        return "no checks"
    (first, word), *rest = parts
    return ", ".join([f"{count(first, 'check')} {word}", *(f"{some} {word}" for some, word in rest)])


def cause_heading(code: str, causes: Mapping[str, Rule]) -> str:
    """Return "RF103 loader-not-sharded", or the code alone when `causes` does not know it."""
    return f"{code} {causes[code].name}" if code in causes else code


def count(number: int, one: str, several: str | None = None) -> str:
    """Return "1 check" or "3 checks"."""
    return f"{number} {one if number == 1 else several or one + 's'}"


def duration(seconds: float) -> str:
    """Return "4.2 s", "43 s" or "3 min 05 s"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes >= 2 else f"{round(seconds)} s"


def printable(text: object) -> str:
    """Return `text` with control characters, half surrogates and the like written as escapes; lines are kept.

    What a script printed or was called with may hold terminal commands, or bytes that no file can take.
    """
    lines = str(text).expandtabs(4).splitlines()
    return "\n".join("".join(c if c.isprintable() else ascii(c)[1:-1] for c in line) for line in lines)

"""Findings of the checks, labels of the runs, and the reasons for which a run cannot be judged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from retrofit.verify.evidence import Run, Runs
from retrofit.verify.verdict import Verdict, count, failed, listed

LABELS = {
    "original": "the script before the change",
    "one": "the script on one process",
    "many": "the script on several processes",
    "own_draws": "the script on several processes, each with random numbers of its own in its loop,",
    "default": "the script on several processes, as you start it",
    "reference": "the replay on one process",
    "reordered": "the replay with another order within its batches",
    "rounded": "the replay with random rounding",
    "rounded_again": "the replay with other random rounding",
    "resumed": "the resumed script",
    "resumed_in_order": "the resumed script, with the order of samples that it has without the stop",
    "loaded": "the script with a checkpoint that it loads to begin with",
    "loaded_on_one": "the same on one process (before the change, if there is one), on the same batches",
    "reload": "the script that loads the checkpoint on one process",
    "reload_original": "the script before the change that loads the checkpoint",
    "alone": "the script (before the change, if there is one) on one process, as it is compared",
    "alone_resumed": "the same script, resumed on one process",
    "resumed_on_one": "the same script, resumed on one process from the checkpoint of several, on their batches",
}


@dataclass(frozen=True)
class Finding:
    """A fault. `cause` is a code of retrofit.rules.catalog, None where the evidence does not tell."""

    summary: str
    cause: str | None = None
    step: int | None = None
    value: str | None = None
    note: str | None = None
    place: str | None = None  # the line of the script that shows it: "train.py:12 in main"
    undecided: bool = False  # something that could not be controlled may have caused it


def fail_with(check: str, title: str, fault: Finding) -> Verdict:
    details = {name: getattr(fault, name) for name in ("step", "value", "cause", "note", "place")}
    return failed(check, title, fault.summary, **details)


def not_made(runs: Runs, *names: str) -> str | None:
    """Return why the runs `names` cannot be judged, or None when there is something of all of them."""
    for name in names:
        if name not in runs:
            return f"{LABELS[name]} was not run"
        if runs[name].left_out:
            return runs[name].left_out
        if not any(rank.events for rank in runs[name].ranks):
            return f"{LABELS[name]} recorded nothing (see completes)"
    return None


def why_not(run: Run, otherwise: str) -> str:
    """Return `otherwise`, or that the run came to an end before there was anything to judge."""
    return otherwise if run.finished else f"{LABELS[run.name]} ended before (see completes)"


def ranks_named(ranks: Iterable[int]) -> str:
    """Return "rank 1" or "ranks 0, 1 and 3"."""
    names = [str(rank) for rank in ranks]
    return f"rank{'s' if len(names) > 1 else ''} {listed(names)}"


def first_few(names: Iterable[object], most: int = 3) -> str:
    """Return the first names, and how many more there are."""
    known = [str(name) for name in names]
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def joined(notes: Iterable[str | None]) -> str | None:
    """Return the notes that there are as one, each only once."""
    known = list(dict.fromkeys(note for note in notes if note))
    return "; ".join(known) or None


def number_of_ranks(run: Run) -> str:
    return count(run.world_size, "rank")

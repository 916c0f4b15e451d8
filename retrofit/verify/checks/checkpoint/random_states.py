"""Random states that a checkpoint holds: whether what is drawn after a resume is what would have been drawn."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import RANDOM_STATE, FileSave, IterationStart, Place

from .saved_files import saves


def random_state_faults(many: Run, resumed: Run, done: int) -> Iterator[Finding]:
    """Yield a saved random state that is, after the resume, one that was saved before it: the same is drawn again."""
    for file, name, _, other in _others(many, resumed, done):
        if any(event.values.get(name) == other for event in many.main.of(FileSave) if event.step <= done):
            summary = f"the random state {name!r} in {file} was not restored: what was drawn before is drawn again"
            yield Finding(summary, "RF507", done)
            return
    yield from _streams_of_ranks(many, resumed, done)


def _streams_of_ranks(many: Run, resumed: Run, done: int) -> Iterator[Finding]:
    """Yield a random stream that the resume restores on rank 0 alone, as the first epoch after it begins.

    Ranks that all take the state of rank 0 are not accused: that is a state, too. A stream from which rank 0 has drawn
    nothing since the training began is the same without being restored.
    """
    first = next((event for event in resumed.main.of(IterationStart) if event.grad_enabled), None)
    if first is None:
        return
    ours, theirs = _streams_at(many, first.place), _streams_at(resumed, first.place)
    begin = next((event.streams for event in many.main.of(IterationStart) if event.streams), {})
    for name in ("python", "torch", "numpy"):
        same = [one.get(name) == other.get(name) for one, other in zip(ours, theirs)]
        of_rank_0 = [other.get(name) == theirs[0].get(name) for other in theirs]
        left_out = [rank for rank in range(len(same)) if not (same[rank] or of_rank_0[rank])]
        if left_out and same[0] and begin.get(name) != ours[0].get(name):
            summary = f"the random state of {name} on rank {left_out[0]} was not restored: rank 0's alone was saved"
            yield Finding(summary, "RF507", done)
            return


def _streams_at(run: Run, place: Place) -> list[dict[str, str | None]]:
    """Return the hashes of each rank's streams as a pass begins; none for all where a rank does not begin it."""
    starts = [next((event for event in rank.of(IterationStart) if event.place == place), None) for rank in run.ranks]
    return [] if None in starts else [start.streams for start in starts if start is not None]


def random_state_note(many: Run, resumed: Run, done: int) -> str | None:
    """Return a note where a random state that is saved is not the one that the run without the stop saves."""
    for file, name, _, _ in _others(many, resumed, done):
        return f"the random state {name!r} in {file} is not that of a training without the stop"
    return None


def _others(many: Run, resumed: Run, done: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield file, name, and the states saved at a step without and with the stop, where they differ."""
    ours, theirs = saves(many.main, done), saves(resumed.main, 0)
    for place in sorted(ours.keys() & theirs.keys(), key=lambda place: place[1]):
        for name, value in ours[place].values.items():
            other = theirs[place].values.get(name)
            if isinstance(value, str) and isinstance(other, str) and value.startswith(RANDOM_STATE) and value != other:
                yield place[0], name, value, other

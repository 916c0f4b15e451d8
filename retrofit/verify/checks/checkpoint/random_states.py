"""Random states that a checkpoint holds: whether what is drawn after a resume is what would have been drawn."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding
from retrofit.verify.evidence import Run
from retrofit.verify.trace.events import RANDOM_STATE, FileSave

from .saved_files import saves


def random_state_faults(many: Run, resumed: Run, done: int) -> Iterator[Finding]:
    """Yield a saved random state that is, after the resume, one that was saved before it: the same is drawn again."""
    for file, name, _, other in _others(many, resumed, done):
        if any(event.values.get(name) == other for event in many.main.of(FileSave) if event.step <= done):
            summary = f"the random state {name!r} in {file} was not restored: what was drawn before is drawn again"
            yield Finding(summary, "RF507", done)
            return


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

"""Figures by which a resumed run decides, such as the best value so far, which the script must restore."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding
from retrofit.verify.checks.training.decided_figures import SMALLEST, decisions_of
from retrofit.verify.evidence import Run, relative_difference

from .figure_places import REPRODUCED, SAME, by_place


def decided_faults(many: Run, resumed: Run, done: int, witness: Run) -> Iterator[Finding]:
    """Yield the figures in decisions that are others than without the stop, each name once.

    `witness`: what it has, too, is of the training, and not of a clock or of random numbers.
    """
    known = by_place(decisions_of(witness.main), done)
    found: set[str] = set()
    for rank, (ours, theirs) in enumerate(zip(many.ranks, resumed.ranks)):
        expected, again = by_place(decisions_of(ours), done), by_place(decisions_of(theirs), 0)
        for place in sorted(expected.keys() & again.keys() & known.keys(), key=lambda place: place[1:]):
            event, other = expected[place], again[place]
            values = dict(zip(other.names, other.values))
            sure = dict(zip(known[place].names, known[place].values))
            for name, value in zip(event.names, event.values):
                is_of_training = name in sure and relative_difference(value, sure[name], SMALLEST) <= REPRODUCED
                if name in found or name not in values or not is_of_training:
                    continue
                if relative_difference(value, values[name], SMALLEST) <= SAME:
                    continue
                found.add(name)
                summary = f"{name!r}, by which `{event.text}` decides, is another one: it was not restored"
                shown = f"{value:.10g} without the stop, {values[name]:.10g} after it"
                yield Finding(f"{summary}, on rank {rank}", "RF507", done + place[1] - 1, shown, place=event.place)

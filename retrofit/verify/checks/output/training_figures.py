"""Figures of the training that rank 0 gives out, against those of one process."""

from __future__ import annotations

from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding, not_made
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.differences import last_same_step, tolerance_of
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import BackwardCall

from .printed_numbers import Value, all_values, clearly_apart, pairs_by_step, summaries_of_epochs
from .written_figures import training_figures_in_files

FEW = 2  # values of one name: one alone is such a multiple by chance
Pair = tuple[Value, Value]


def training_fault(runs: Runs, options: CheckOptions) -> Finding | None:
    """Return a figure of the training that is a multiple of that of one process, or is of one rank's share.

    The loss of rank 0's batch in a line of progress is listed, not accused, in a script without the runtime: PyTorch's
    own examples print it. The runtime has `reduce_loss`, and `convert` lists by line what it leaves as it is.
    """
    if not_made(runs, "many", "reference") is not None:
        return None
    many, reference = runs["many"], runs["reference"]
    last_step = last_same_step(runs, tolerance_of(many, options))
    if many.world_size == 1 or last_step is None:
        return None
    given_out = [*_pairs(all_values(many.main), all_values(reference.main), last_step, options)]
    for factor in (float(many.world_size), 1 / many.world_size):
        for name, pairs in given_out:
            if len(pairs) >= FEW and _is_multiple(pairs, factor):
                text = f"{factor:g} times the figure of one process is given out"
                return _finding(name, text, pairs[0], many.world_size)
    ours, theirs = (_of_epochs(run, options) for run in (many, reference))
    for name, pairs in _pairs(ours, theirs, last_step, options):
        wrong = [pair for pair in pairs if not pair[0].equals(pair[1]) and not _is_last_loss(many.main, pair[0])]
        if wrong:
            text = "a figure of a whole epoch is given out that is of rank 0's share only, or averaged otherwise"
            return _finding(name, text, wrong[0], many.world_size)
    if options.uses_runtime:
        for name, pairs in given_out:
            wrong = clearly_apart(pairs)
            if wrong:
                return _finding(name, "the figure of rank 0's share is given out", wrong[0], many.world_size)
    return None


def _of_epochs(run: Run, options: CheckOptions) -> dict[str, list[Value]]:
    """Return what is given out of whole epochs; in files, too, where no line of them is listed for the user."""
    in_files = {} if options.uses_runtime else training_figures_in_files(run)
    return {**summaries_of_epochs(run.main), **in_files}


def _pairs(
    ours: dict[str, list[Value]], theirs: dict[str, list[Value]], last_step: float, options: CheckOptions
) -> Iterator[tuple[str, list[Pair]]]:
    """Yield the values of each name with those of one process, as long as both have the same weights.

    What the user was told is rank 0's share is left out.
    """
    for name, values in ours.items():
        both = pairs_by_step(values, theirs.get(name, []))
        pairs = [(a, b) for a, b in both if a.step <= last_step]
        if pairs and not any(a.place in options.listed_figures for a, _ in pairs):
            yield name, pairs


def _is_multiple(pairs: list[Pair], factor: float) -> bool:
    """Return whether each value is this multiple, and some are further from the other one than their digits tell."""
    scaled = all(
        abs(a.number - factor * b.number) <= max(1e-6 * abs(a.number), a.rounding + factor * b.rounding)
        for a, b in pairs
    )
    return scaled and any(abs(a.number - b.number) > 100 * max(a.rounding, b.rounding, 1e-9) for a, b in pairs)


def _is_last_loss(rank: RankTrace, value: Value) -> bool:
    """Return whether a value is the loss of a single batch of this rank, just before."""
    losses = [event.loss for event in rank.of(BackwardCall) if event.step == value.step - 1]
    allowed = max(1e-6 * abs(value.number), value.rounding)
    return any(abs(value.number - loss) <= allowed for loss in losses)


def _finding(name: str, text: str, pair: Pair, world_size: int) -> Finding:
    a, b = pair
    value = f"{a.text} with {world_size} processes, {b.text} with 1"
    return Finding(f"{a.label or name}: {text}", "RF401", max(a.step - 1, 0), value, place=a.where)

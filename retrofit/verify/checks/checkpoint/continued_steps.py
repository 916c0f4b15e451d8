"""The optimizer steps of a training that is resumed against those of the one that was not stopped."""

from __future__ import annotations

import math
from collections.abc import Iterator

from retrofit.verify.checks.finding import Finding
from retrofit.verify.checks.training.differences import tensors_differ
from retrofit.verify.checks.training.rates.learning_rate import SAME
from retrofit.verify.evidence import RankTrace, Run, flat, relative_difference
from retrofit.verify.trace.events import InitialWeights, OptimizerStep

from .first_epoch import first_epoch_is_cut, starts_elsewhere, state_of

ANOTHER_LOSS = "the loss is another one with the same samples"
OTHER_SAMPLES = "other samples follow: the position in the data, or the epoch's order, was not restored"
ANOTHER_RATE = "the learning rate is another one: the scheduler was not restored"
OTHER_WEIGHTS = "the weights are others after a step with the same loss: the optimizer's state was not restored"
BY_ORIGIN = (OTHER_SAMPLES, ANOTHER_RATE, ANOTHER_LOSS, OTHER_WEIGHTS)
Difference = tuple[str, "str | None"]  # what differs, and the values


def step_fault(many: Run, resumed: Run, done: int, tolerance: float) -> Finding | None:
    """Return the first thing in which the resumed run is another one; steps are counted from the very beginning."""
    fault = _start_fault(many, resumed, done, tolerance)
    if fault is not None:
        return fault
    for step, rank, differences in _compared(many, resumed, done, tolerance):
        if differences:
            what, value = differences[0]
            is_restart = resumed.ranks[rank].steps[step].lr == many.ranks[rank].steps[step].lr
            undecided = what == ANOTHER_RATE and first_epoch_is_cut(many) and not is_restart
            return Finding(f"{what}, on rank {rank}", "RF507", done + step, value, undecided=undecided)
    return None


def is_of_other_ranks(many: Run, resumed: Run, done: int, tolerance: float) -> bool:
    """Return whether rank 0 continues as it was, and other ranks do not: with what rank 0 has saved.

    What is another one on rank 0 in the same step follows from them, as all its weights do.
    """
    if _start_fault(many, resumed, done, tolerance) is not None:
        return False
    first: dict[int, int] = {}  # by rank, what differs in the first step in which something does
    started: int | None = None
    for step, rank, differences in _compared(many, resumed, done, tolerance):
        if started is not None and step > started:
            break
        if differences:
            started = step
            first[rank] = min(_place_of(what) for what, _ in differences)
    return bool(first) and min(first.values()) < first.get(0, len(BY_ORIGIN))


def _place_of(what: str) -> int:
    """Return the place of what differs among all that may: each may follow from those before it."""
    return next(place for place, known in enumerate(BY_ORIGIN) if what.startswith(known))


def kinds_of_faults(many: Run, resumed: Run, done: int, tolerance: float) -> set[str]:
    """Return all that differs and is not sure to follow from something else that does."""
    start = _start_fault(many, resumed, done, tolerance)
    found = {kind_of(start)} if start is not None else set()
    is_apart = bool(found)
    if any(_orders_differ(a, b) for a, b in zip(many.ranks, resumed.ranks)):
        found.add(OTHER_SAMPLES)
    for _, _, differences in _compared(many, resumed, done, tolerance):
        names = [what for what, _ in differences]
        found |= {OTHER_SAMPLES, ANOTHER_RATE} & set(names)
        found |= set(names[:1]) if not is_apart else set()
        is_apart = is_apart or bool(names)
    return found


def kind_of(fault: Finding) -> str:
    """Return what differs, without the rank on which it does."""
    return fault.summary.partition(", on rank")[0]


def _orders_differ(rank: RankTrace, other: RankTrace) -> bool:
    """Return whether a sampler gives an epoch of the training another order; what is drawn may be replayed."""
    orders, again = (
        {one.place[:2]: one.order for one in each.training if one.order is not None} for each in (rank, other)
    )
    return any(orders[epoch] != again[epoch] for epoch in orders.keys() & again.keys())


def _compared(many: Run, resumed: Run, done: int, tolerance: float) -> Iterator[tuple[int, int, list[Difference]]]:
    """Yield each step that both have made, each rank, and what differs there.

    Ranks with other samples come first: where BatchNorm is over all ranks, each loss follows from all their samples.
    """
    steps = min(resumed.num_steps, many.num_steps - done)
    samples = [(drawn_samples(a, done), drawn_samples(b, 0)) for a, b in zip(many.ranks, resumed.ranks)]
    are_same = [_is_one_order(*both) for both in samples]
    for step in range(steps):
        found = []
        for rank, (ours, theirs) in enumerate(zip(many.ranks, resumed.ranks)):
            drawn, other = samples[rank][0][step], samples[rank][0 if are_same[rank] else 1][step]
            if step == 0 and drawn and other:
                # Before it the batches that were trained on are drawn and left out; or one that ends an epoch is.
                last = min(len(drawn), len(other))
                drawn, other = drawn[-last:], other[-last:]
            first = drawn_samples(ours, step)[0] if drawn != other else []
            again = ", which are those of the first epoch once more" if other and other == first else ""
            of_step = ours.steps[done + step], theirs.steps[step]
            found.append((step, rank, [*_differences(*of_step, drawn, other, tolerance, step == 0, again)]))
        yield from sorted(found, key=lambda one: all(what != OTHER_SAMPLES for what, _ in one[2]))


def _is_one_order(drawn: list[list[object]], again: list[list[object]]) -> bool:
    """Return whether the samples follow each other the same way: a thread draws some ahead, in each run others."""
    ours, theirs = flat(drawn), flat(again)
    common = min(len(ours), len(theirs))
    return common > 0 and ours[:common] == theirs[:common]


def _start_fault(many: Run, resumed: Run, done: int, tolerance: float) -> Finding | None:
    """Return the first rank that starts from other weights than were saved."""
    started = state_of(many.main.of(InitialWeights))
    for number, rank in enumerate(resumed.ranks):
        on, own = f", on rank {number}" if number else "", state_of(rank.of(InitialWeights))
        for opt in starts_elsewhere(many, resumed, number, tolerance):
            if opt in started and not tensors_differ(own[opt], started[opt], tolerance):
                return Finding(f"the resumed script starts from the initial weights{on}", "RF507", done)
            return Finding(f"the resumed script starts from other weights than were saved{on}", "RF507", done)
    return None


def _differences(
    expected: OptimizerStep,
    found: OptimizerStep,
    samples: list[object],
    other: list[object],
    tolerance: float,
    is_first: bool,
    again: str,
) -> Iterator[Difference]:
    """Yield what differs in one step: the samples, the rate, the loss or the weights, and the values.

    `again`: what is known of the samples where they are others.
    """
    if samples != other:
        yield OTHER_SAMPLES, f"{samples[:4]} without the stop, {other[:4]} after it{again}"
    for a, b in zip(expected.lr, found.lr):
        if relative_difference(a, b) > SAME:
            yield ANOTHER_RATE, f"{a:.6g} and {b:.6g}"
            break
    # Before its first step a resumed script may have run a forward and a backward for nothing.
    totals = math.fsum(expected.losses), math.fsum(found.losses[-len(expected.losses) :])
    if relative_difference(*totals) > tolerance:
        cause = "random state or buffers were not restored" if is_first else "something of the state was not restored"
        yield f"{ANOTHER_LOSS}: {cause}", f"{totals[0]:.10g} and {totals[1]:.10g}"
    if tensors_differ(expected, found, tolerance):
        yield OTHER_WEIGHTS, None


def drawn_samples(rank: RankTrace, first_step: int) -> list[list[object]]:
    """Return the training samples drawn for each optimizer step from `first_step` on, in order."""
    batches = sorted(
        (position, batch)
        for iteration in rank.training
        for position, batch in zip(iteration.batch_positions, iteration.batches)
    )
    found: list[list[object]] = []
    number = 0
    for position in rank.step_positions:
        drawn: list[object] = []
        while number < len(batches) and batches[number][0] < position:
            drawn += batches[number][1]
            number += 1
        found.append(drawn)
    return found[first_step:]

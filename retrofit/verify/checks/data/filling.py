"""Samples that fill up the last batch of all ranks, so that these have as many batches: the first ones once more."""

from __future__ import annotations

from collections.abc import Sequence

from retrofit.verify.evidence import Iteration, flat


def num_filled(shares: Sequence[Iteration]) -> int:
    """Return how many samples of an epoch are the first ones once more, 0 where others are drawn twice as well.

    The ranks take their batches in turn from one order, which begins again where it ends: so do libraries that make
    the last batches whole (`even_batches` of Accelerate).
    """
    ranks = [share.batches if share.order is None else share.order for share in shares]
    if len({len(batches) for batches in ranks}) > 1 or len({len(batch) for batches in ranks for batch in batches}) > 1:
        return 0
    order = flat(batch for turn in zip(*ranks) for batch in turn)
    length = len(set(order))
    size = sum(len(batches[0]) for batches in ranks if batches)
    begins_again = all(sample == order[place % length] for place, sample in enumerate(order))
    return len(order) - length if begins_again and len(order) - length < size else 0


def num_distinct(shares: Sequence[Iteration]) -> int:
    return len({sample for share in shares for sample in share.drawn})

"""Micro batches of a step that hold other samples on one process than those of the ranks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from retrofit.verify.checks.finding import Finding
from retrofit.verify.checks.training.batchnorm import has_batchnorm
from retrofit.verify.evidence import RankTrace, Runs, flat
from retrofit.verify.trace.events import BatchPart


def other_micro_batches(runs: Runs, step: int) -> Finding | None:
    """Return that BatchNorm has the statistics of other samples, where one process cuts its batch otherwise.

    A script that cuts it into parts of a fixed size has parts of one rank each on one process.
    """
    many, reference = runs["many"], runs["reference"]
    if not has_batchnorm(many):
        return None
    alone = _micro_batches(reference.main, step)
    together = [
        sum((part for part in turn if part is not None), Counter())
        for turn in zip_longest(*(_micro_batches(rank, step) for rank in many.ranks))
    ]
    if alone == together or sum(alone, Counter()) != sum(together, Counter()):
        return None
    sizes = [", ".join(str(sum(part.values())) for part in parts) for parts in (together, alone)]
    return Finding(
        f"BatchNorm takes its statistics over parts of the batch that hold other samples: of {sizes[0]} samples on all "
        f"ranks, of {sizes[1]} on one process",
        undecided=True,
    )


def _micro_batches(rank: RankTrace, step: int) -> list[Counter[Any]]:
    """Return the samples of each part of a batch from which a gradient was computed before a step."""
    batches = _batches_of(rank)
    parts = [event for event in rank.of(BatchPart) if event.step == step]
    return [Counter(batches[event.iteration, event.number][row] for row in event.rows) for event in parts]


def _batches_of(rank: RankTrace) -> Mapping[tuple[int, int], list[Any]]:
    return {
        (one.begin.iteration, number): flat([batch])
        for one in rank.iterations
        for number, batch in enumerate(one.batches)
    }

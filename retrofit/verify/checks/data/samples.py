"""The samples of each epoch, and the epoch of one process that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrofit.verify.evidence import Iteration, RankTrace, Run, Runs

# Samplers without a rule of their own: each sample once, in order or shuffled.
PLAIN_SAMPLERS = {
    "BatchSampler",
    "DistributedSampler",
    "EvaluationSampler",
    "RandomSampler",
    "SequentialSampler",
    "ShardedSampler",
    "_InfiniteConstantSampler",
}


def training_datasets(run: Run) -> list[str]:
    """Return the keys of the datasets that rank 0 trains on, in the order of their first use."""
    return list(dict.fromkeys(iteration.dataset for iteration in run.main.training))


def training_of(rank: RankTrace, key: str) -> list[Iteration]:
    return [iteration for iteration in rank.training if iteration.dataset == key]


def epochs_of_ranks(run: Run, key: str) -> list[list[Iteration]]:
    """Return for each epoch that all ranks have begun the training iteration of every rank."""
    return [list(epoch) for epoch in zip(*(training_of(rank, key) for rank in run.ranks))]


def members_of(rank: RankTrace, key: str) -> frozenset[Any] | None:
    """Return the samples that the Subset with the name `key` holds on this rank; None where it is a whole dataset."""
    members = (one.members for one in rank.iterations if one.dataset == key)
    return next((some for some in members if some is not None), None)


def members_of_run(run: Run, key: str) -> frozenset[Any] | None:
    """Return the samples that the Subsets with the name `key` hold together; None where it is a whole dataset."""
    members = [some for rank in run.ranks for some in [members_of(rank, key)] if some is not None]
    return frozenset().union(*members) if members else None


def single_process_run(runs: Runs, key: str, may_lack: bool = False) -> Run | None:
    """Return the run of one process whose dataset `key` holds the same samples as on the ranks.

    `may_lack`: or those and more, of which the ranks' parts leave some out.

    That is the natural run. Weights drawn in double precision take more random numbers, so a split drawn after them
    is another one there; the replay then has the ranks' split, and its sampler's own orders are in its trace too.
    """
    wanted = members_of_run(runs["many"], key)
    for name in ("one", "reference"):
        run = runs.get(name)
        if run is None or not run.ranks or not any(one.dataset == key for one in run.main.iterations):
            continue
        if _same_members(run, key, wanted, may_lack) and (name == "one" or wanted is not None):
            return run
    return None


def _same_members(run: Run, key: str, wanted: frozenset[Any] | None, may_lack: bool) -> bool:
    members = members_of_run(run, key)
    if members is None and wanted is not None:  # the ranks' Subsets may be the parts of a whole dataset
        first = next(one for one in run.main.iterations if one.dataset == key)
        members = frozenset(range(first.length or 0))
    if may_lack and members is not None and wanted is not None:
        return wanted <= members
    return members == wanted


def own_sampler(iteration: Iteration) -> str | None:
    """Return the name of a sampler with a rule of its own in the chain of an iteration's samplers, if any."""
    return next((name for name in iteration.begin.samplers if name not in PLAIN_SAMPLERS), None)


def num_repeated(samples: Sequence[Any]) -> int:
    return len(samples) - len(set(samples))


def global_batch(iterations: Sequence[Iteration]) -> int:
    """Return the samples that one batch of all ranks holds."""
    return sum((iteration.begin.batch_size or 1) for iteration in iterations)

"""The samples of each evaluation: those of all ranks together, and those of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from retrofit.verify.checks.finding import Finding, ranks_named
from retrofit.verify.evidence import Iteration, RankTrace, Run, Runs
from retrofit.verify.trace.events import CollectiveCall
from retrofit.verify.verdict import count

from .samples import members_of_run, single_process_run
from .split import is_own_part, own_lengths


@dataclass
class Tally:
    """What was found over all evaluations."""

    judged: int = 0
    samples: int = 0
    datasets: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class InexactEvaluation:
    """A pass in which the ranks together do not have each sample once."""

    fault: Finding
    length: int  # samples of one process
    padding: int = 0  # samples that are repeated where none is left out: they may fill up the last batches
    at_step: int = 0  # optimizer steps that rank 0 had made


def evaluation_fault(runs: Runs) -> Finding | None:
    """Return the first evaluation that repeats or leaves out samples, if there is one."""
    return next((inexact.fault for inexact in inexact_evaluations(runs)), None)


def inexact_evaluations(runs: Runs, tally: Tally | None = None) -> Iterator[InexactEvaluation]:
    """Yield the evaluations that repeat or leave out samples."""
    many, tally = runs["many"], tally or Tally()
    for key in evaluated_datasets(runs):
        base = _run_to_compare(runs, key)
        if base is not None and is_own_part(runs, key) and members_of_run(many, key) is None:
            yield from _inexact_by_number(runs, key)
            continue
        if base is None:
            continue
        for whole in evaluations(base.main, key):
            inexact = _inexact(many, whole, tally)
            if inexact is not None:
                yield inexact


def _run_to_compare(runs: Runs, key: str) -> Run | None:
    """Return the run of one process with the samples of a dataset: of a stream, whose names are hashes, in float64."""
    reference = runs.get("reference")
    if reference is not None and reference.ranks:
        passes = evaluations(reference.main, key)
        if passes and not passes[0].begin.is_map:
            return reference
    return single_process_run(runs, key, may_lack=True)


def _inexact_by_number(runs: Runs, key: str) -> Iterator[InexactEvaluation]:
    """Yield the evaluation of datasets of the ranks' own which are together not as long as that of one process."""
    lengths, whole = own_lengths(runs, key) or ([], 0)
    total, first = sum(lengths), next(iter(evaluations(runs["many"].main)), None)
    if total == whole or first is None:
        return
    value = f"{' + '.join(map(str, lengths))} samples on the ranks, {whole} on one process"
    if total < whole:
        summary = f"the ranks' parts of {key} leave out {count(whole - total, 'sample')}"
        yield InexactEvaluation(Finding(summary, "RF111", value=value), whole, 0, first.begin.step)
    else:
        fault = Finding(f"{total} samples are evaluated where {key} has {whole}", "RF105", value=value)
        yield InexactEvaluation(fault, whole, total - whole, first.begin.step)


def evaluated_datasets(runs: Runs) -> list[str]:
    """Return the keys of the datasets that are evaluated on one process."""
    found: dict[str, None] = {}
    for name in ("one", "reference"):
        if name in runs and runs[name].ranks:
            main = runs[name].main
            found.update((key, None) for key in main.iterations_by_dataset if evaluations(main, key))
    return list(found)


def evaluations(rank: RankTrace, key: str | None = None) -> list[Iteration]:
    """Return the passes over data that the model was not trained on and that came to their end."""
    passes = rank.iterations if key is None else rank.iterations_by_dataset.get(key, [])
    return [one for one in passes if not one.train and one.exhausted and one.delivered]


def is_combined(rank: RankTrace, step: int) -> bool:
    """Return whether a rank reduces or gathers something after an evaluation at this step has begun."""
    start = next((one.position for one in evaluations(rank) if one.begin.step == step), None)
    calls = (one for one in rank.events[start:] if isinstance(one, CollectiveCall) and one.step == step)
    return start is None or any("reduce" in call.op or "gather" in call.op for call in calls if not call.in_backward)


def _inexact(many: Run, whole: Iteration, tally: Tally) -> InexactEvaluation | None:
    shares = {rank.rank: _at(rank, whole) for rank in many.ranks}
    ended = {rank: share for rank, share in shares.items() if share is not None and share.exhausted}
    begun = [rank for rank, share in shares.items() if share is not None]
    if any(rank.rank not in ended and not rank.ended_well for rank in many.ranks):
        return None  # the run ended before
    if not ended or len(ended) < len(begun):
        is_dropped = not begun and many.finished and not any(evaluations(rank) for rank in many.ranks)
        missing = Finding(f"{whole.dataset} is evaluated by no rank", "RF111")
        return InexactEvaluation(missing, len(whole.delivered)) if is_dropped else None
    tally.judged += 1
    tally.samples = max(tally.samples, len(whole.delivered))
    expected = Counter(whole.delivered)
    draws = {rank: Counter(share.delivered) for rank, share in ended.items()}
    first = next(iter(draws.values()))
    others = expected if not _is_cut_by_chance(whole) or not _is_as_large(first, expected) else first
    if all(draw == others for draw in draws.values()):
        if len(draws) > 1:
            tally.notes.append("every rank evaluates everything: right, but N times the work")
        elif many.world_size > 1:
            tally.notes.append(f"{ranks_named(draws)} evaluates alone while the others wait")
        return None
    together = sum(draws.values(), Counter())
    together += _rest(many, ended, expected - together)
    fault = _judge(together, expected, whole, many.world_size)
    if fault is None:
        return None
    padding = 0 if expected - together else sum((together - expected).values())
    return InexactEvaluation(fault, len(whole.delivered), padding, next(iter(ended.values())).begin.step)


def _rest(many: Run, shares: dict[int, Iteration], absent: Counter[Any]) -> Counter[Any]:
    """Return the samples that other passes at this step evaluate of those that the ranks' shares leave out.

    A sampler that drops the last samples leaves them to a loader of their own, which every rank runs whole.
    """
    found = []
    for rank, share in shares.items():
        passes = [one for one in evaluations(many.ranks[rank]) if one.begin.step == share.begin.step]
        own = [Counter(one.delivered) for one in passes if one is not share and not Counter(one.delivered) - absent]
        found.append(sum(own, Counter()))
    return found[0] if all(one == found[0] for one in found) else sum(found, Counter())


def _judge(together: Counter[Any], expected: Counter[Any], whole: Iteration, world: int) -> Finding | None:
    repeated, absent = together - expected, expected - together
    if not repeated and not absent:
        return None
    if _is_cut_by_chance(whole) and _is_as_large(together, expected):
        return None
    total, length = sum(together.values()), len(whole.delivered)
    padded = -(-length // world) * world
    name = whole.dataset
    if not absent and total == padded:
        some = min(repeated, key=str)
        value = f"sample {some} is counted {together[some]} times"
        return Finding(f"{total} samples are evaluated where {name} has {length}", "RF105", value=value)
    parts = []
    if absent:
        parts.append(f"{count(sum(absent.values()), 'sample')} left out (sample {min(absent, key=str)})")
    if repeated:
        parts.append(f"{count(sum(repeated.values()), 'sample')} too many (sample {min(repeated, key=str)})")
    return Finding(f"the ranks together do not evaluate {name} exactly once", "RF111", value=", ".join(parts))


def _is_cut_by_chance(whole: Iteration) -> bool:
    """Return whether a shuffled evaluation leaves out its last batch: others each time."""
    return whole.begin.drop_last and "RandomSampler" in whole.begin.samplers


def _is_as_large(draws: Counter[Any], expected: Counter[Any]) -> bool:
    """Return whether as many samples are drawn, each once."""
    return max(draws.values()) == 1 and sum(draws.values()) == sum(expected.values())


def _at(rank: RankTrace, whole: Iteration) -> Iteration | None:
    """Return the same pass on a rank: over the same dataset, at the same place in the training."""
    passes = rank.iterations_by_dataset.get(whole.dataset, [])
    return next((one for one in passes if not one.train and one.place == whole.place), None)

"""Random streams that the ranks draw augmentation, dropout and noise from."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from retrofit.verify.checks.finding import Finding, fail_with, first_few, not_made, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Iteration, RankTrace, Run, Runs
from retrofit.verify.trace.events import OF_DATASET, RowDraw, WorkerStreams
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

# Dropout and what models write by hand for it, stochastic depth say: `torch.rand(shape) < p` within a model.
DROPPING = {"native_dropout", "_fused_dropout", "bernoulli", "bernoulli_", "rrelu_with_noise"}
UNIFORM = {"rand", "rand_like", "uniform", "uniform_", "random", "random_sample"}


def random_streams(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the random streams that the ranks draw from, for samples that they load and for rows in a step."""
    check, title = "random_streams", "each rank augments its samples with random numbers of its own"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    firsts = [rank.training[0] for rank in many.ranks if rank.training]
    if len(firsts) < max(2, many.world_size):
        return not_applicable(check, title, why_not(many, "no training loader was used by several ranks"))
    drawn = set().union(*(_draws(rank) for rank in many.ranks))
    shared = _shared_draws(many)
    fault = (_loading_fault(many, firsts, drawn) if drawn else None) or _row_fault(shared) or _resume_fault(runs, drawn)
    if fault is not None:
        return fail_with(check, title, fault)
    note = _note(shared)
    if drawn:
        return passed(check, title, f"samples draw from {', '.join(sorted(drawn))}, which differ on all ranks", note)
    places = {draw.where for rank in many.ranks for draw in rank.of(RowDraw)}
    if places:
        text = f"numbers for the samples of a batch are drawn at {count(len(places), 'place')}"
        return passed(check, title, text if note else f"{text}, from streams that differ on all ranks", note)
    is_watched = any(one.end is not None for rank in many.ranks for one in rank.training)
    reason = "loading a sample draws no random numbers, nor does a step for its rows"
    return not_applicable(check, title, reason if is_watched else why_not(many, "no training epoch came to its end"))


def _loading_fault(many: Run, firsts: list[Iteration], drawn: set[str]) -> Finding | None:
    """Return which ranks draw the same numbers while they load samples."""
    workers = [_worker_streams(rank, first) for rank, first in zip(many.ranks, firsts)]
    for (first, a), (other, b) in combinations(enumerate(firsts), 2):
        ours, theirs = workers[first], workers[other]
        if ours and theirs:
            for name in sorted(drawn):
                for worker, (mine, others) in enumerate(zip(ours, theirs)):
                    if mine.get(name) is not None and mine.get(name) == others.get(name):
                        summary = (
                            f"{ranks_named((first, other))} draw from the same {name} stream while they load samples: "
                            f"worker_init_fn seeds worker {worker} the same on both"
                        )
                        return Finding(summary, "RF109", value=f"state {mine[name]} on both")
            continue
        for name in _streams_in_use(firsts[0], drawn):
            states = a.begin.streams.get(name), b.begin.streams.get(name)
            if states[0] is not None and states[0] == states[1]:
                summary = f"{ranks_named((first, other))} draw from the same {name} stream while they load samples"
                return Finding(summary, "RF109", value=f"state {states[0]} on both")
    return None


def _resume_fault(runs: Runs, drawn: set[str]) -> Finding | None:
    """Return which ranks draw the same numbers after a resume, which restores the state of one rank on all of them."""
    resumed = runs.get("resumed")
    if resumed is None or not all(rank.training for rank in resumed.ranks):
        return None
    firsts = [rank.training[0] for rank in resumed.ranks]
    fault = (_loading_fault(resumed, firsts, drawn) if drawn else None) or _row_fault(_shared_draws(resumed))
    if fault is None:
        return None
    note = "restore on each rank the random state that this rank has saved, or seed by the rank after loading"
    return replace(fault, summary=f"after a resume {fault.summary}", note=note)


def _shared_draws(many: Run) -> list[tuple[RowDraw, str]]:
    """Return what ranks draw for the rows of different batches from streams in the same state, and which ranks."""
    draws = [{(draw.op, draw.where): draw for draw in rank.of(RowDraw)} for rank in many.ranks]
    shared = []
    for place in draws[0]:
        for first, other in combinations(range(len(draws)), 2):
            a, b = draws[first].get(place), draws[other].get(place)
            if a and b and (a.stream, a.state) == (b.stream, b.state) and a.samples != b.samples:
                shared.append((a, ranks_named((first, other))))
                break
    return shared


def _row_fault(shared: list[tuple[RowDraw, str]]) -> Finding | None:
    found = next(((draw, ranks) for draw, ranks in shared if not _is_regularisation(draw)), None)
    if found is None:
        return None
    draw, ranks = found
    source = "generators in the same state" if draw.stream == "generator" else f"the same {draw.stream} stream"
    return Finding(
        f"{ranks} draw the same random numbers for their samples at {draw.where}",
        "RF109",
        value=f"{draw.op} from {source}, {draw.state} on both",
    )


def _note(shared: list[tuple[RowDraw, str]]) -> str | None:
    """Return where dropout is the same on ranks: libraries seed so (`set_seed`), and the training stays unbiased."""
    places = dict.fromkeys(draw.where for draw, _ in shared)
    return (
        f"the ranks' dropout masks are the same ({first_few(places)}); seed each rank differently" if places else None
    )


def _is_regularisation(draw: RowDraw) -> bool:
    return draw.op in DROPPING or (draw.in_model and draw.op in UNIFORM)


def _draws(rank: RankTrace) -> set[str]:
    return {name for one in rank.training if one.end for name in one.end.draws}


def _worker_streams(rank: RankTrace, iteration: Iteration) -> list[dict[str, str]]:
    """Return the streams of each loader worker after worker_init_fn; empty where there are none or it is not known."""
    found = (event.streams for event in rank.of(WorkerStreams) if event.iteration == iteration.begin.iteration)
    return next(found, [])


def _streams_in_use(iteration: Iteration, drawn: set[str]) -> list[str]:
    """Return the streams that decide what samples draw: loader workers are seeded from one stream of the process."""
    if not iteration.begin.num_workers:
        return sorted(drawn)
    return ["torch" if iteration.begin.streams.get("loader") is None else "loader", *({OF_DATASET} & drawn)]

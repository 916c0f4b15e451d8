"""The ranks' datasets: the same data on all ranks, unchanged while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.trace.events import SampleContents
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .samples import members_of

OWN_STREAMS = ("python", "numpy", "torch")  # of a process
Probe = dict[str, str]  # index -> hash of the sample's content
BY_DRAW = "data that is drawn at random, or shuffled, is the same only where all ranks have one seed before it is built"
BY_HASH = "an order that comes from a set, or a number from hash(), is another one in each process: sort the names"


def split(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the datasets of the ranks, by length, members and the content of a few samples."""
    check, title = "split", "all ranks hold the same data"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    fault = split_fault(runs)
    if fault is not None:
        return fail_with(check, title, fault)
    many = runs["many"]
    own_parts = [key for key in _datasets(many) if is_own_part(runs, key)]
    if own_parts:
        return passed(check, title, f"the script gives each rank a part of its own of {', '.join(own_parts)}")
    probed = [key for key in _datasets(many) if len(_first_probes(many, key)) == many.world_size]
    if not probed:
        reason = "no dataset whose samples have numbers was read by all ranks"
        return not_applicable(check, title, why_not(many, reason))
    samples = sum(len(_first_probes(many, key)[0]) for key in probed)
    return passed(
        check, title, f"{count(samples, 'sample')} of {count(len(probed), 'dataset')} are the same everywhere"
    )


def split_fault(runs: Runs) -> Finding | None:
    """Return how the ranks' data differs, or how it changes, if it does."""
    many = runs["many"]
    fault = _length_fault(runs)
    for key in _datasets(many):
        if fault is None and not is_own_part(runs, key):
            fault = _member_fault(many, key) or _content_fault(many, key)
    return fault or changed_in_place(many) or _drawn_fault(runs)


def changed_in_place(run: Run) -> Finding | None:
    """Return which dataset held other content after it was read than before, if one did.

    A dataset that the script itself draws again between two epochs (its negatives, say) is the same during each.
    """
    for rank in run.ranks:
        for one in rank.iterations:
            before, after = one.begin.probe, one.end.probe if one.end is not None else None
            index = _first_difference(before, after) if before and after else None
            if before and after and index is not None:
                return Finding(
                    f"sample {index} of {one.dataset} is another one after an epoch than before it (rank {rank.rank})",
                    "RF110",
                    value=f"content {before[index]} before, {after[index]} after",
                )
    return None


def is_own_part(runs: Runs, key: str) -> bool:
    """Return whether the script gives each rank a part of its own of the dataset `key`, instead of the loader."""
    many = runs["many"]
    members = [members_of(rank, key) for rank in many.ranks]
    if None in members or many.world_size == 1:
        return own_lengths(runs, key) is not None
    sets = [some for some in members if some is not None]
    together = frozenset().union(*sets)
    return len(together) == sum(len(some) for some in sets) and len(together) > max(len(some) for some in sets)


def own_datasets(runs: Runs) -> str | None:
    """Return why samples cannot be compared by number: each rank trains on a dataset of its own."""
    many = runs["many"]
    keys = {one.dataset for rank in many.ranks for one in rank.training}
    if any(is_own_part(runs, key) and all(members_of(rank, key) is None for rank in many.ranks) for key in keys):
        return "the script gives each rank a dataset of its own, whose numbers say nothing about the others'"
    return None


def own_lengths(runs: Runs, key: str) -> tuple[list[int], int] | None:
    """Return the lengths of the ranks' own parts of a dataset, and its length on one process; None for no such parts.

    Together they are as long, but for fewer samples than there are ranks: cut by hand, a remainder is left out.
    """
    for keys, lengths, whole in _lengths(runs):
        if key in keys and whole is not None and len(lengths) > 1:
            is_close = abs(sum(lengths) - whole) < len(lengths)
            return (lengths, whole) if is_close and max(lengths) < whole else None
    return None


def _lengths(runs: Runs) -> list[tuple[list[str], list[int], int | None]]:
    """Return for each dataset its keys and lengths on the ranks, and its length on one process.

    Keys hold the length, so datasets are paired by the order in which they were first read: all of them where every
    rank reads equally many, else those that are trained on.
    """
    many = runs["many"]
    traces = [*many.ranks, *(runs["one"].ranks[:1] if "one" in runs else [])]
    orders = [list(trace.iterations_by_dataset) for trace in traces]
    if len({len(order) for order in orders}) > 1:
        orders = [list(dict.fromkeys(one.dataset for one in trace.training)) for trace in traces]
    rows = []
    for keys in zip(*orders):
        lengths = [trace.iterations_by_dataset[key][0].length for trace, key in zip(traces, keys)]
        known = [length for length in lengths if length is not None]
        if len(known) == len(traces) and len({key.split(":")[0] for key in keys}) == 1:
            whole = known[many.world_size] if len(known) > many.world_size else None
            rows.append((list(keys), known[: many.world_size], whole))
    return rows


def _length_fault(runs: Runs) -> Finding | None:
    for keys, lengths, whole in _lengths(runs):
        if is_own_part(runs, keys[0]):
            continue
        if len(set(lengths)) > 1:
            value = f"lengths by rank: {', '.join(map(str, lengths))}"
            return Finding(f"the dataset {keys[0]} has another length on each rank", "RF108", value=value)
        if whole is not None and lengths[0] != whole:
            value = f"{lengths[0]} samples on each rank, {whole} on one process"
            return Finding(f"the dataset {keys[0]} has another length than on one process", value=value)
    return None


def _member_fault(run: Run, key: str) -> Finding | None:
    members = {rank.rank: members_of(rank, key) for rank in run.ranks}
    known = {rank: some for rank, some in members.items() if some is not None}
    if len(set(known.values())) < 2:
        return None
    (first, a), (other, b) = next(
        (one, two) for one in known.items() for two in known.items() if one[0] < two[0] and one[1] != two[1]
    )
    return Finding(
        f"the ranks hold different parts of {key}, and they overlap",
        "RF108",
        value=f"rank {first} and rank {other} have {len(a & b)} of {len(a)} samples in common",
    )


def _content_fault(run: Run, key: str) -> Finding | None:
    probes = _first_probes(run, key)
    for other in probes[1:]:
        index = _first_difference(probes[0], other)
        if index is not None:
            return Finding(
                f"sample {index} of {key} is not the same on all ranks",
                "RF108",
                value=f"content {probes[0][index]} and {other[index]}",
                note=_why_contents_differ(run, key),
            )
    return None


def _why_contents_differ(run: Run, key: str) -> str | None:
    """Return what may give the ranks other samples: random draws only where their streams are not the same."""
    streams = [one.begin.streams for rank in run.ranks for one in rank.iterations_by_dataset.get(key, [])[:1]]
    is_seeded = all(own.get(name) == streams[0].get(name) for own in streams[1:] for name in OWN_STREAMS)
    return joined((None if is_seeded else BY_DRAW, BY_HASH))


def _drawn_fault(runs: Runs) -> Finding | None:
    """Return which sample has another content on a rank than on one process, where rank 0 has what that has."""
    many, reference = runs["many"], runs.get("reference")
    if reference is None or not reference.ranks:
        return None
    ranks, expected = [_contents(rank) for rank in many.ranks], _contents(reference.main)
    for (key, epoch, name), (content, built) in expected.items():
        if is_own_part(runs, key) and any(members_of(rank, key) is None for rank in many.ranks):
            continue
        own = [contents.get((key, epoch, name), (content, built))[0] for contents in ranks]
        other = next((rank for rank, found in enumerate(own) if found != content), None)
        if other is None:
            continue
        if other == 0:  # the script does not do the same on one process, either
            return None
        return Finding(
            f"sample {name} of {key} is not the same on rank {other} as on one process",
            "RF108",
            value=f"content {own[other]} on rank {other}, {content} on one process",
            note=joined((f"the loader is built at {built}" if built else None, BY_HASH)),
        )
    return None


def _contents(rank: RankTrace) -> dict[tuple[str, int, str], tuple[str, str | None]]:
    """Return the content of samples by dataset, epoch and name, and where the loader is built."""
    places = {one.begin.iteration: one.begin for one in rank.iterations}
    found: dict[tuple[str, int, str], tuple[str, str | None]] = {}
    for event in rank.of(SampleContents):
        begin = places[event.iteration]
        for name, content in event.contents.items():
            found.setdefault((begin.dataset, begin.epoch, name), (content, event.built))
    return found


def _datasets(run: Run) -> list[str]:
    return list(dict.fromkeys(one.dataset for rank in run.ranks for one in rank.iterations))


def _first_probes(run: Run, key: str) -> list[Probe]:
    """Return the first probe of each rank that has one."""
    firsts = (next(_probes(rank, key), None) for rank in run.ranks)
    return [first[1] for first in firsts if first is not None]


def _probes(rank: RankTrace, key: str) -> Iterator[tuple[int, Probe]]:
    """Yield the probes of a dataset in the order in which they were taken, with their places in the trace."""
    found: list[tuple[int, Any]] = []
    for one in rank.iterations_by_dataset.get(key, []):
        found.append((one.position, one.begin.probe))
        if one.end is not None and one.end_position is not None:
            found.append((one.end_position, one.end.probe))
    return (pair for pair in sorted(found, key=lambda pair: pair[0]) if pair[1])


def _first_difference(a: Probe, b: Probe) -> str | None:
    return next((index for index in a if index in b and a[index] != b[index]), None)

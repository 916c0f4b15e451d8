"""The ranks' shards of an epoch: disjoint, and together the samples of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from retrofit.verify.checks.finding import Finding, fail_with, joined, not_made, number_of_ranks, ranks_named, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.evidence import Iteration, Runs, flat
from retrofit.verify.trace.events import is_own_batches
from retrofit.verify.verdict import Verdict, count, not_applicable, passed

from .filling import num_filled
from .samples import (
    epochs_of_ranks,
    global_batch,
    num_repeated,
    own_sampler,
    single_process_run,
    training_datasets,
    training_of,
)
from .split import own_datasets, split_fault

BY_CONTENT = "samples of a stream are told apart by content: random changes inside it would hide a repeated one"
OFTEN = 3  # times as many contents in common as one rank has twice: not those of a stream that repeats some
OF_OWN_BATCHES = "batches that no DataLoader gives are compared one by one with those of one process"


def shards(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the samples that the ranks draw in an epoch with each other, and together with those of one process."""
    check, title = "shards", "the ranks' shares of an epoch are disjoint and complete"
    reason = not_made(runs, "many") or incomparable(runs)
    if reason:
        return not_applicable(check, title, reason)
    many = runs["many"]
    if many.world_size == 1 or not any(epochs_of_ranks(many, key) for key in training_datasets(many)):
        return not_applicable(check, title, why_not(many, "no training loader was used by several ranks"))
    fault = shards_fault(runs)
    if fault is not None:
        return fail_with(check, title, fault)
    epochs = max(len(epochs_of_ranks(many, key)) for key in training_datasets(many))
    summary = f"no sample is drawn by two of {number_of_ranks(many)} in {count(epochs, 'epoch')}, none is missing"
    return passed(check, title, summary, joined(_notes(runs)))


def shards_fault(runs: Runs) -> Finding | None:
    """Return what is wrong with the ranks' shares in the first epoch in which something is."""
    many = runs["many"]
    if incomparable(runs):
        return None
    for key in training_datasets(many):
        whole_run = runs.get("reference") if is_own_batches(key) else single_process_run(runs, key)
        wholes = training_of(whole_run.main, key) if whole_run and whole_run.ranks else []
        for epoch, shares in enumerate(epochs_of_ranks(many, key)):
            whole = wholes[epoch] if epoch < len(wholes) else None
            judge = _shares_fault if shares[0].begin.is_map else _streams_fault
            fault = (_own_batches_fault if is_own_batches(key) else judge)(shares, whole, epoch)
            if fault is not None:
                return fault
    return None


def incomparable(runs: Runs) -> str | None:
    """Return why the ranks' samples cannot be compared, None if they can."""
    fault = split_fault(runs)
    if fault is not None and fault.cause != "RF110":
        return "the ranks do not hold the same data (see split)"
    return own_datasets(runs)


def _shares_fault(shares: Sequence[Iteration], whole: Iteration | None, epoch: int) -> Finding | None:
    draws = [Counter(share.drawn) for share in shares]
    if draws[0] and all(other == draws[0] for other in draws[1:]):
        return Finding(
            f"all ranks train on the same {count(len(draws[0]), 'sample')} in epoch {epoch}",
            "RF103",
            value=f"sample {shares[0].drawn[0]} is drawn by {ranks_named(range(len(shares)))}",
        )
    replaced = _replaced_sampler(shares, whole)
    if replaced is not None:
        return replaced
    by_rule = own_sampler(shares[0]) is not None if whole is None else num_repeated(whole.drawn) > 0
    if by_rule:
        return None  # drawn with replacement: another draw holds other samples
    return _overlap(shares, epoch) or _gap(shares, whole, epoch)


def _replaced_sampler(shares: Sequence[Iteration], whole: Iteration | None) -> Finding | None:
    """Return a fault when one process draws by a rule of its own and the ranks draw each sample once."""
    if whole is None:
        return None
    together = [sample for share in shares for sample in share.drawn]
    draws_once = num_repeated(together) < len(shares)
    by_rule, by_rank = own_sampler(whole), own_sampler(shares[0])
    repeats = num_repeated(whole.drawn)
    if not draws_once or by_rank is not None or (by_rule is None and repeats < len(shares)):
        return None
    name = by_rule or "a sampler with replacement"
    counts = (
        f"{repeats} of {len(whole.drawn)} samples are repeated on one process, {num_repeated(together)} on the ranks"
    )
    value = counts if repeats else None
    chain = " over ".join(shares[0].begin.samplers or ["their own sampler"])
    return Finding(f"one process draws by {name}, the ranks by {chain}", "RF102", value=value)


def _overlap(shares: Sequence[Iteration], epoch: int) -> Finding | None:
    """Return a fault when more samples are drawn twice than padding explains."""
    together = Counter(sample for share in shares for sample in share.drawn)
    repeated = [sample for sample, times in together.items() if times > 1]
    if sum(together.values()) - len(together) < len(shares) or num_filled(shares):
        return None
    sample = repeated[0]
    holders = [rank for rank, share in enumerate(shares) if sample in share.drawn]
    return Finding(
        f"{len(repeated)} of {count(len(together), 'sample')} are drawn more than once in epoch {epoch}",
        "RF103",
        value=f"sample {sample} is drawn by {ranks_named(holders)}",
    )


def _gap(shares: Sequence[Iteration], whole: Iteration | None, epoch: int) -> Finding | None:
    """Return a fault when samples that one process draws are drawn by no rank."""
    if whole is None or not whole.is_whole or not all(share.is_whole for share in shares):
        return None
    expected, together = _population(whole), {sample for share in shares for sample in share.drawn}
    unknown, absent = together - expected, expected - together
    if unknown:
        value = f"{count(len(unknown), 'sample')}, {min(unknown, key=str)} for one"
        return Finding(f"the ranks draw samples in epoch {epoch} that one process never draws", "RF102", value=value)
    allowed = len(expected) - len(set(whole.drawn))
    if any(share.begin.drop_last for share in shares):
        allowed = max(allowed, global_batch(shares) - 1)
    allowed = max(allowed, _most_dropped(shares, len(expected)))
    if len(absent) <= allowed:
        return None
    value = f"sample {min(absent, key=str)} for one"
    summary = f"{len(absent)} of {count(len(expected), 'sample')} are drawn by no rank in epoch {epoch}"
    lengths = [len(share.drawn) for share in shares]
    is_even = max(lengths) - min(lengths) <= 1  # else a rank that has fewer batches may have lost some
    return Finding(summary, "RF103" if is_even else None, value=value)


def _most_dropped(shares: Sequence[Iteration], size: int) -> int:
    """Return how many samples a sampler may leave out that gives all ranks the same, as `drop_last` of torch's does.

    A batch sampler of the script's own may leave out a batch that is not full on all ranks.
    """
    drawn = sum(len(share.drawn) for share in shares)
    if len({len(share.drawn) for share in shares}) > 1:
        return 0
    sizes = {len(batch) for share in shares for batch in (share.order if share.order is not None else share.batches)}
    makes_batches = shares[0].begin.batch_size is None and len(sizes) == 1
    unit = len(shares) * (max(sizes) if makes_batches else 1)
    return unit - 1 if drawn == size // unit * unit else 0


def _population(whole: Iteration) -> set[Any]:
    """Return the samples that one process can draw: all of the dataset if it leaves out less than a batch of them."""
    drawn = set(whole.drawn)
    everything = set(whole.members) if whole.members is not None else set(range(whole.length or 0))
    left_out = len(everything) - len(drawn)
    # A batch sampler of the script's own tells its size by its batches.
    size = whole.begin.batch_size or max(map(len, whole.order or whole.batches), default=1)
    return everything if drawn <= everything and left_out < size else drawn


def _streams_fault(shares: Sequence[Iteration], whole: Iteration | None, epoch: int) -> Finding | None:
    draws = [Counter(share.drawn) for share in shares]
    for (first, a), (other, b) in combinations(enumerate(draws), 2):
        common = sum((a & b).values())
        if common > sum(a.values()) // 2 or common > OFTEN * (2 + max(map(_num_again, (a, b)))):
            value = f"rank {first} and rank {other} have {common} of {sum(a.values())} samples in common"
            return Finding(f"the ranks read the same part of the stream in epoch {epoch}", "RF104", value=value)
    if whole is None or not whole.exhausted or not all(share.exhausted for share in shares):
        return None
    lengths = [len(share.drawn) for share in shares]
    if whole.drawn and all(length == len(whole.drawn) for length in lengths):
        value = f"{lengths[0]} samples on each rank, {len(whole.drawn)} on one process"
        return Finding(f"each rank reads the whole stream in epoch {epoch}", "RF104", value=value)
    if len(whole.drawn) - sum(lengths) >= global_batch(shares):
        value = f"{sum(lengths)} samples on all ranks, {len(whole.drawn)} on one process"
        return Finding(f"part of the stream is read by no rank in epoch {epoch}", "RF104", value=value)
    return None


def _num_again(draws: Counter[Any]) -> int:
    return sum(draws.values()) - len(draws)


def _own_batches_fault(shares: Sequence[Iteration], whole: Iteration | None, epoch: int) -> Finding | None:
    """Return a fault when the ranks' parts of a batch are not together the batch that one process draws."""
    for number, parts in enumerate(zip(*(share.batches for share in shares))):
        drawn = [Counter(flat([part])) for part in parts]
        if sum(map(len, parts)) > 2 * len(parts) and all(other == drawn[0] for other in drawn[1:]):
            value = f"sample {next(iter(drawn[0]))} is drawn by {ranks_named(range(len(shares)))}"
            return Finding(f"all ranks train on the same samples in batch {number}", "RF103", value=value)
        if whole is None or number >= len(whole.batches):
            continue
        together, expected = sum(drawn, Counter()), Counter(flat([whole.batches[number]]))
        few = len(whole.batches[number]) < len(shares)  # then some are repeated, and count nothing
        if set(together) != set(expected) or (together != expected and not few):
            value = f"{sum((expected - together).values())} of {count(sum(expected.values()), 'sample')} are others"
            return Finding(f"the ranks' parts of batch {number} are not that of one process", "RF103", value=value)
    return None


def _notes(runs: Runs) -> list[str]:
    notes = []
    many = runs["many"]
    for key in training_datasets(many):
        whole_run = single_process_run(runs, key)
        for shares in epochs_of_ranks(many, key)[:1]:
            if not shares[0].begin.is_map:
                notes.append(OF_OWN_BATCHES if is_own_batches(key) else BY_CONTENT)
                continue
            together = [sample for share in shares for sample in share.drawn]
            whole = next(iter(training_of(whole_run.main, key)), None) if whole_run else None
            if whole is None:
                notes.append(f"no epoch of one process to compare {key} with")
            elif num_repeated(whole.drawn):
                notes.append(f"{key} is drawn with replacement, so one process draws other samples")
            elif num_filled(shares) >= len(shares):
                filled = f"{num_filled(shares)} of {count(len(together), 'sample')} of an epoch are the first ones"
                notes.append(f"{filled} once more: they fill up the last batch of all ranks, and are trained on twice")
            elif num_repeated(together):
                notes.append(f"{count(num_repeated(together), 'sample')} repeated per epoch, so that ranks are even")
            if not all(share.is_whole for share in shares):
                notes.append(f"only the batches that were used of {key} are known")
    return notes

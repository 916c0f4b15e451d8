"""Samples per optimizer step, and optimizer steps per epoch."""

from __future__ import annotations

from collections import Counter

from retrofit.verify.checks.finding import Finding, fail_with, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.training.causes.averaged_weights import averaged_weights
from retrofit.verify.evidence import RankTrace, Run, Runs
from retrofit.verify.verdict import Verdict, not_applicable, passed

from .filling import num_distinct, num_filled
from .samples import epochs_of_ranks, training_datasets
from .shards import shards_fault


def global_batch(runs: Runs, options: CheckOptions) -> Verdict:
    """Compare the samples per optimizer step, and the steps per epoch, with those of one process."""
    check, title = "global_batch", "an optimizer step takes as many samples as on one process"
    reason = not_made(runs, "many", "one")
    if reason:
        return not_applicable(check, title, reason)
    many, one = runs["many"], runs["one"]
    sizes, expected = rows_per_step(many), rows_per_step(one)
    if not sizes or not expected:
        run = many if not sizes else one
        return not_applicable(check, title, why_not(run, "no samples came from a DataLoader"))
    fault = shards_fault(runs)
    if fault is not None and fault.cause in ("RF103", "RF104"):
        return not_applicable(
            check, title, "the ranks train on the same samples, their batches do not add up (see shards)"
        )
    fault = global_batch_fault(runs)
    if fault is not None and averaged_weights(many) is not None:
        return not_applicable(check, title, "each rank steps with a batch of its own, and the weights are averaged")
    if fault is not None:
        return fail_with(check, title, fault)
    return passed(check, title, f"{' and '.join(map(str, dict.fromkeys(sizes.values())))} samples per step")


def global_batch_fault(runs: Runs) -> Finding | None:
    """Return by how much the global batch or the number of steps per epoch differs, if it does."""
    many, one = runs["many"], runs["one"]
    sizes, expected = rows_per_step(many), rows_per_step(one)
    for opt in sizes:
        if opt not in expected or sizes[opt] == expected[opt] or _is_filled_batch(many, sizes[opt], expected[opt]):
            continue
        ratio = sizes[opt] / expected[opt]
        step = next((n for n, rows in enumerate(_rows_of_steps(many)) if rows != expected[opt]), None)
        value = f"{sizes[opt]} samples with {many.world_size} processes, {expected[opt]} with 1"
        cause = "RF107" if ratio == many.world_size else None
        return Finding(f"an optimizer step takes {ratio:g} times as many samples", cause, step, value)
    lengths, expected_lengths = _steps_per_epoch(many.main), _steps_per_epoch(one.main)
    for epoch, (steps, wanted) in enumerate(zip(lengths, expected_lengths)):
        if abs(steps - wanted) > 1:  # an incomplete last batch may be a step or not
            value = f"{steps} optimizer steps with {many.world_size} processes, {wanted} with 1"
            return Finding(f"epoch {epoch} has another number of optimizer steps", value=value)
    return None


def _is_filled_batch(many: Run, size: int, expected: int) -> bool:
    """Return whether the samples of one process are filled up to a batch of this size, the only one of an epoch."""
    firsts = [epochs[0] for key in training_datasets(many) if (epochs := epochs_of_ranks(many, key))]
    return any(
        num_filled(shares) and num_distinct(shares) == expected and sum(len(share.drawn) for share in shares) == size
        for shares in firsts
    )


def is_divided_twice(many: Run, one: Run) -> bool:
    """Return whether a step of all ranks takes as many samples as one process divided by their number."""
    sizes, expected = rows_per_step(many), rows_per_step(one)
    common = [opt for opt in sizes if opt in expected]
    return bool(common) and all(sizes[opt] * many.world_size == expected[opt] for opt in common)


def rows_per_step(run: Run) -> dict[int, int]:
    """Return for each optimizer how many samples of all ranks its steps usually take; only those that take any."""
    sizes: dict[int, Counter[int]] = {}
    for step, rows in zip(run.main.steps, _rows_of_steps(run)):
        if rows:
            sizes.setdefault(step.optimizer, Counter())[rows] += 1
    return {opt: counter.most_common(1)[0][0] for opt, counter in sizes.items()}


def _rows_of_steps(run: Run) -> list[int]:
    return [sum(rows) for rows in zip(*(rank.rows_per_step for rank in run.ranks))]


def _steps_per_epoch(rank: RankTrace) -> list[int]:
    """Return the optimizer steps of each epoch that came to its own end, until the first that did not."""
    steps = Counter(epoch for epoch, _, _ in rank.step_places)
    lengths = []
    for number, epoch in enumerate(rank.epochs):
        if not epoch.exhausted:
            break
        lengths.append(steps[number])
    return lengths

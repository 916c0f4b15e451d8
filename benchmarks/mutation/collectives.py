"""Mistakes with collectives: called by some ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, Mutation, Source

COLLECTIVE = (
    r"([\w.]+\.)?(all_reduce|all_gather|all_gather_object|barrier|broadcast|sum_over_ranks|reduce_total|reduce_loss|"
    r"gather_batches|sum_attributes|all_gather_into_tensor|reduce_dict|mean_over_ranks)"
)


def guarded_collective(source: Source) -> Iterator[Mutation]:
    """A collective is called by rank 0 alone."""
    seen = set()
    for call in source.calls(COLLECTIVE):
        statement = source.statement(call)
        if statement not in seen and isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign)):
            seen.add(statement)
            yield source.guarded(statement, f"{RANK} == 0")


def barrier_of_one_rank(source: Source) -> Iterator[Mutation]:
    """A barrier is in a branch of rank 0."""
    for loop in _epochs(source):
        yield source.with_lines(loop.body[-1], [f"if {RANK} == 0 and _dist.is_initialized(): _dist.barrier()"])


def leaves_early(source: Source) -> Iterator[Mutation]:
    """Rank 1 leaves the training after its first epoch."""
    for loop in _epochs(source):
        yield source.with_lines(loop.body[-1], [f"if {RANK} == 1: break"])


def _epochs(source: Source) -> Iterator[ast.For | ast.While]:
    """Yield the loops over epochs: the outer ones whose variable is named so."""
    for loop in source.of(ast.For):
        is_epoch = "epoch" in ast.unparse(loop.target)
        if is_epoch and not source.loops(loop) and not isinstance(loop.body[-1], (ast.Continue, ast.Break, ast.Return)):
            yield loop


OPERATORS = {
    guarded_collective: ("RF402", "RF405", "RF603"),
    barrier_of_one_rank: ("RF402",),
    leaves_early: ("RF402", "RF401", "RF106"),
}

"""Mistakes with learning rates and schedules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, WORLD, Mutation, Source

OPTIMIZER = r"([\w.]+\.)?(SGD|Adam|AdamW|RMSprop|Adagrad|NAdam|RAdam|Adadelta)"
SCHEDULER = r"([\w.]+\.)?\w*(LR|LRScheduler|Restarts|OneCycleLR)"
LENGTHS = {"T_max", "total_steps", "step_size", "T_0", "steps_per_epoch", "total_iters", "num_training_steps"}


def rate_times_ranks(source: Source) -> Iterator[Mutation]:
    """The rate is multiplied by the number of ranks although the global batch is the same."""
    for value in _rates(source):
        yield source.replaced(value, f"({source.segment(value)}) * {WORLD}")


def rate_by_rank(source: Source) -> Iterator[Mutation]:
    """Each rank has another learning rate."""
    for value in _rates(source):
        yield source.replaced(value, f"({source.segment(value)}) * (1 + 0.1 * {RANK})")


def schedule_once_per_rank(source: Source) -> Iterator[Mutation]:
    """The schedule steps once per rank."""
    for call in _scheduler_steps(source):
        yield source.replaced(source.statement(call), f"[{source.segment(call)} for _ in range({WORLD})]")


def schedule_on_one_rank(source: Source) -> Iterator[Mutation]:
    """Rank 0 alone steps the schedule."""
    for call in _scheduler_steps(source):
        yield source.guarded(source.statement(call), f"{RANK} == 0")


def schedule_too_long(source: Source) -> Iterator[Mutation]:
    """The schedule is too long by the number of ranks."""
    for call in source.calls(SCHEDULER):
        for keyword in call.keywords:
            if keyword.arg in LENGTHS:
                yield source.replaced(keyword.value, f"({source.segment(keyword.value)}) * {WORLD}")
        name = ast.unparse(call.func).rpartition(".")[2]
        if name in ("StepLR", "CosineAnnealingLR") and len(call.args) > 1:
            yield source.replaced(call.args[1], f"({source.segment(call.args[1])}) * {WORLD}")


def _rates(source: Source) -> Iterator[ast.expr]:
    for call in source.calls(OPTIMIZER):
        given = [keyword.value for keyword in call.keywords if keyword.arg == "lr"] or call.args[1:2]
        if given:
            yield given[0]


def _scheduler_steps(source: Source) -> Iterator[ast.Call]:
    for call in source.calls(r"[\w.]*(sched|scheduler|lr_scheduler|scheduler\w+|sched_\w+)\.step"):
        if isinstance(source.parents[call], ast.Expr):
            yield call


OPERATORS = {
    rate_times_ranks: ("RF304",),
    rate_by_rank: ("RF304", "RF401"),
    schedule_once_per_rank: ("RF305", "RF304"),
    schedule_on_one_rank: ("RF305", "RF401"),
    schedule_too_long: ("RF305", "RF304"),
}

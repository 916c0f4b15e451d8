"""Mistakes after a resume: state that is not restored, or on one rank alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from .source import RANK, Mutation, Source

NUMBERS = ("epoch", "start_epoch", "best", "best_acc", "step", "bad", "waited")
LOADED = re.compile(r"ck\w*|checkpoint|state|saved|loaded")
STATES = re.compile(r"optim|opt\b|sched|scaler|ema")


def state_not_restored(source: Source) -> Iterator[Mutation]:
    """The state of an optimizer, a schedule, a scaler or an average is saved and not restored."""
    for call in source.calls(r".+\.load_state_dict"):
        if STATES.search(source.segment(call.func)) and isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def weights_not_restored(source: Source) -> Iterator[Mutation]:
    """The weights are not restored."""
    for call in source.calls(r".+\.load_state_dict"):
        if not STATES.search(source.segment(call.func)) and isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def restored_on_one_rank(source: Source) -> Iterator[Mutation]:
    """The state is restored on rank 0 alone."""
    for call in source.calls(r".+\.load_state_dict"):
        if isinstance(source.parents[call], ast.Expr):
            yield source.guarded(source.statement(call), f"{RANK} == 0")


def number_not_restored(source: Source) -> Iterator[Mutation]:
    """A number of the checkpoint (epoch, best value) is not restored."""
    for node in source.of(ast.Subscript):
        key, statement = node.slice, source.statement(node)
        is_number = isinstance(key, ast.Constant) and key.value in NUMBERS and isinstance(node.ctx, ast.Load)
        if is_number and isinstance(statement, ast.Assign) and LOADED.search(source.segment(node.value)):
            yield source.replaced(node, "0")


def streams_not_restored(source: Source) -> Iterator[Mutation]:
    """The random state is not restored."""
    for call in source.calls(r"([\w.]+\.)?(set_rng_state|setstate|set_state)"):
        if isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


OPERATORS = {
    state_not_restored: ("RF507",),
    weights_not_restored: ("RF507",),
    restored_on_one_rank: ("RF507", "RF201", "RF401", "RF108"),
    number_not_restored: ("RF507", "RF101"),
    streams_not_restored: ("RF507", "RF109"),
}

"""Mistakes with losses: scaled by the number of ranks, averaged per rank, computed within a rank."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import WORLD, Mutation, Source


def loss_times_ranks(source: Source) -> Iterator[Mutation]:
    """The loss is multiplied by the number of ranks."""
    for call in source.calls(r".+\.backward"):
        yield source.replaced(call.func.value, f"({source.segment(call.func.value)} * {WORLD})")


def loss_over_ranks(source: Source) -> Iterator[Mutation]:
    """The loss is divided by the number of ranks, which averaging does already."""
    for call in source.calls(r".+\.backward"):
        yield source.replaced(call.func.value, f"({source.segment(call.func.value)} / {WORLD})")


def loss_of_own_share(source: Source) -> Iterator[Mutation]:
    """The loss is computed over the rank's own samples where it needs those of all."""
    own = (
        r"[\w.]+\.loss\.(rank_share|global_batch|batch_rows|distribute_criterion|sum_loss|batch_count|whole_batch_size)"
    )
    for call in source.calls(own):
        if call.args:
            yield source.replaced(call, source.segment(call.args[0]))


def count_of_own_share(source: Source) -> Iterator[Mutation]:
    """A count that divides the loss is the rank's own."""
    for call in source.calls(r"([\w.]+\.)?all_reduce"):
        statement = source.statement(call)
        if (
            isinstance(statement, ast.Expr)
            and call.args
            and any(w in source.segment(call.args[0]) for w in ("count", "num", "tokens", "valid"))
        ):
            yield source.removed(statement)


def gathered_without_gradient(source: Source) -> Iterator[Mutation]:
    """Embeddings of all ranks are gathered without a gradient."""
    for call in source.calls(r"\w*[gG]ather\w*\.apply|(\w+\.)*functional\.all_gather|(\w+\.)*gather_with_grad"):
        if call.args:
            yield source.replaced(call.args[0], f"{source.segment(call.args[0])}.detach()")


def not_gathered(source: Source) -> Iterator[Mutation]:
    """A loss that compares samples sees those of its own rank."""
    for call in source.calls(r"\w*[gG]ather\w*\.apply|(\w+\.)*gather_with_grad|gather_all"):
        if call.args:
            yield source.replaced(call, source.segment(call.args[0]))


OPERATORS = {
    loss_times_ranks: ("RF301",),
    loss_over_ranks: ("RF301",),
    loss_of_own_share: ("RF301", "RF302", "RF303", "RF309"),
    count_of_own_share: ("RF302", "RF301", "RF401"),
    gathered_without_gradient: ("RF303", "RF301"),
    not_gathered: ("RF303", "RF309"),
}

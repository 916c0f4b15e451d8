"""Mistakes with figures: metrics, logged losses, what is decided by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, WORLD, WORLD_NAMES, Mutation, Source

REDUCTIONS = (
    r"[\w.]+\.(sum_over_ranks|reduce_total|reduce_loss|sum_attributes|gather_batches|reduce_dict|mean_over_ranks)"
)


def figure_not_reduced(source: Source) -> Iterator[Mutation]:
    """A figure is that of one rank's share: its reduction is missing."""
    for call in source.calls(REDUCTIONS):
        given = [source.segment(argument) for argument in call.args]
        if given and not isinstance(source.parents[call], ast.Expr):
            yield source.replaced(call, given[0] if len(given) == 1 else f"({', '.join(given)})")
    for call in source.calls(r"([\w.]+\.)?(all_reduce|reduce)"):
        if isinstance(source.parents[call], ast.Expr) and "grad" not in source.segment(call):
            yield source.removed(source.statement(call))


def largest_share(source: Source) -> Iterator[Mutation]:
    """The largest of the ranks' numbers in place of their sum."""
    for call in source.calls(r"([\w.]+\.)?all_reduce"):
        if "grad" not in source.segment(call) and len(call.args) == 1 and not call.keywords:
            yield source.with_argument(call, "op", "_dist.ReduceOp.MAX")


def sum_not_divided(source: Source) -> Iterator[Mutation]:
    """A sum over the ranks is not divided by their number."""
    for node in source.of(ast.BinOp):
        if (
            isinstance(node.op, ast.Div)
            and WORLD_NAMES.search(source.segment(node.right))
            and "grad" not in source.segment(node.left)
        ):
            yield source.replaced(node, source.segment(node.left))


def padded_evaluation(source: Source) -> Iterator[Mutation]:
    """DistributedSampler pads the evaluation: a sample counts twice."""
    for call in source.calls(r"[\w.]+\.share_batches"):
        loader = source.segment(call.args[0])
        sampler = f"_torch.utils.data.distributed.DistributedSampler({loader}.dataset, {WORLD}, {RANK}, shuffle=False)"
        options = f"{loader}.batch_size, sampler={sampler}, collate_fn={loader}.collate_fn"
        yield source.replaced(call, f"_torch.utils.data.DataLoader({loader}.dataset, {options})")


def evaluation_cut(source: Source) -> Iterator[Mutation]:
    """Rank 1 evaluates one batch less."""
    for call in source.calls(r"[\w.]+\.share_batches"):
        yield source.replaced(call, f"list({source.segment(call)})[{RANK} == 1:]")


def plateau_by_own_value(source: Source) -> Iterator[Mutation]:
    """ReduceLROnPlateau follows each rank's own value."""
    for call in source.calls(r"[\w.]*(sched|scheduler|lr_scheduler|plateau)\w*\.step"):
        if (
            len(call.args) == 1
            and isinstance(source.parents[call], ast.Expr)
            and "epoch" not in source.segment(call.args[0])
        ):
            yield source.replaced(call.args[0], f"({source.segment(call.args[0])}) * (1 + 1e-3 * {RANK})")


def best_by_own_value(source: Source) -> Iterator[Mutation]:
    """What is best, or when to stop, is decided by each rank's own value."""
    for statement in source.of(ast.If):
        test = statement.test
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], (ast.Lt, ast.Gt, ast.LtE, ast.GtE)):
            continue
        own = source.segment(test.left)
        if isinstance(test.left, (ast.Name, ast.Attribute)) and "best" in source.segment(test) and "best" not in own:
            yield source.with_lines(statement, before=[f"{own} = {own} * (1 + 1e-3 * {RANK})"])


OPERATORS = {
    figure_not_reduced: ("RF401", "RF402", "RF302", "RF301", "RF405"),
    largest_share: ("RF401", "RF302", "RF301", "RF405"),
    sum_not_divided: ("RF401", "RF301"),
    padded_evaluation: ("RF105", "RF111"),
    evaluation_cut: ("RF111", "RF401", "RF402", "RF106"),
    plateau_by_own_value: ("RF401",),
    best_by_own_value: ("RF401", "RF405"),
}

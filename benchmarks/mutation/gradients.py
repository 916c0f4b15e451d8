"""Mistakes between backward and step: averaging, accumulation, clipping, steps of some ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, WORLD_NAMES, Mutation, Source

ALL_PARAMETERS = '[p for g in {}.param_groups for p in g["params"] if p.grad is not None]'


def _backwards(source: Source) -> Iterator[tuple[ast.Expr, ast.Call, str]]:
    """Yield each backward statement with its call and the optimizer that steps in the same function."""
    for call in source.calls(r".+\.backward"):
        statement = source.statement(call)
        steps = [
            c
            for c in source.calls(r"[\w.]*(optim|opt|optimizer|optimizer\w+|optimizer_\w+|opt_\w+)\.step")
            if source.function(c) is source.function(call)
        ]
        if isinstance(statement, ast.Expr) and steps:
            yield statement, call, source.segment(steps[0].func.value)


def averaged_twice(source: Source) -> Iterator[Mutation]:
    """Gradients are added up over the ranks after they were averaged."""
    for statement, _, optimizer in _backwards(source):
        line = f"for _p in {ALL_PARAMETERS.format(optimizer)}: _dist.is_initialized() and _dist.all_reduce(_p.grad)"
        yield source.with_lines(statement, [line])


def gradient_reduction_missing(source: Source) -> Iterator[Mutation]:
    """Gradients that are averaged by hand are not."""
    for call in source.calls(r"([\w.]+\.)?all_reduce"):
        if "grad" in source.segment(call) and isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def gradient_division_missing(source: Source) -> Iterator[Mutation]:
    """Gradients are added up and not divided by the number of ranks."""
    for statement in source.of(ast.AugAssign):
        if (
            isinstance(statement.op, ast.Div)
            and "grad" in source.segment(statement.target)
            and WORLD_NAMES.search(source.segment(statement.value))
        ):
            yield source.removed(statement)
    for call in source.calls(r".+\.div_"):
        if "grad" in source.segment(call.func) and isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def step_on_one_rank(source: Source) -> Iterator[Mutation]:
    """Rank 0 alone makes the optimizer's step."""
    for call in _steps(source):
        yield source.guarded(source.statement(call), f"{RANK} == 0")


def step_by_own_value(source: Source) -> Iterator[Mutation]:
    """Each rank decides by its own loss whether to step."""
    for _, call, _ in _backwards(source):
        loss = call.func.value
        steps = [c for c in _steps(source) if source.function(c) is source.function(call)]
        if isinstance(loss, ast.Name) and steps:
            yield source.guarded(source.statement(steps[0]), f"_int(float({loss.id}) * 1e5) % 3")


def clipped_before_averaging(source: Source) -> Iterator[Mutation]:
    """Each rank clips its own gradients before they are averaged."""
    averages = [
        c
        for c in source.calls(r"([\w.]+\.)?all_reduce|[\w.]*average_gradients\w*|[\w.]*sync_gradients\w*")
        if "grad" in source.segment(c)
    ]
    for statement, _, optimizer in _backwards(source):
        if averages:
            yield source.with_lines(
                statement, [f"_torch.nn.utils.clip_grad_norm_({ALL_PARAMETERS.format(optimizer)}, 0.05)"]
            )


def no_sync_shifted(source: Source) -> Iterator[Mutation]:
    """Gradients are averaged in the wrong micro batches."""
    for call in source.calls(r"[\w.]+\.gradient_sync"):
        for keyword in call.keywords:
            if keyword.arg == "enabled":
                yield source.replaced(keyword.value, f"not ({source.segment(keyword.value)})")
    for statement in source.of(ast.Assign):
        target = source.segment(statement.targets[0])
        if target.endswith("require_backward_grad_sync"):
            yield source.replaced(statement.value, f"not ({source.segment(statement.value)})")
    for node in source.of(ast.IfExp):
        if ".no_sync()" in source.segment(node):
            yield source.replaced(node.test, f"not ({source.segment(node.test)})")


def no_sync_missing(source: Source) -> Iterator[Mutation]:
    """Gradients are averaged in every micro batch."""
    for call in source.calls(r"[\w.]+\.gradient_sync"):
        for keyword in call.keywords:
            if keyword.arg == "enabled":
                yield source.replaced(keyword.value, "True")
    for node in source.of(ast.IfExp):
        if ".no_sync()" in source.segment(node):
            yield source.replaced(
                node, source.segment(node.orelse if ".no_sync()" in source.segment(node.body) else node.body)
            )


def gradient_of_a_copy(source: Source) -> Iterator[Mutation]:
    """A copy of the gradient is averaged."""
    for call in source.calls(r"([\w.]+\.)?all_reduce"):
        if call.args and source.segment(call.args[0]).endswith(".grad"):
            yield source.replaced(call.args[0], f"{source.segment(call.args[0])}.clone()")


def _steps(source: Source) -> list[ast.Call]:
    calls = source.calls(r"[\w.]*(optim|opt|optimizer|optimizer\w+|optimizer_\w+|opt_\w+)\.step")
    return [call for call in calls if isinstance(source.parents[call], ast.Expr)]


OPERATORS = {
    averaged_twice: ("RF301",),
    gradient_reduction_missing: ("RF201", "RF209", "RF211"),
    gradient_division_missing: ("RF301",),
    step_on_one_rank: ("RF201", "RF209", "RF405", "RF401", "RF402"),
    step_by_own_value: ("RF405", "RF401", "RF402"),
    clipped_before_averaging: ("RF202", "RF302"),
    no_sync_shifted: ("RF202", "RF201"),
    no_sync_missing: ("RF203",),
    gradient_of_a_copy: ("RF201", "RF209", "RF211"),
}

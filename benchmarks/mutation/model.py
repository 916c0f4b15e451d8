"""Mistakes with models: wrappers that are missing, lost, late or passed by, and weights that differ."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .source import RANK, Mutation, Source

DDP = r"([\w.]+\.)?(DDP|DistributedDataParallel|distribute_model|distribute_models)"
SHARDING = r"([\w.]+\.)?fully_shard"


def _wrappings(source: Source) -> Iterator[tuple[ast.Assign, ast.Call, str]]:
    """Yield each assignment of a wrapped model, the wrapping call, and the name that it is assigned to."""
    for call in source.calls(DDP):
        statement = source.statement(call)
        if (
            isinstance(statement, ast.Assign)
            and statement.value is call
            and not isinstance(statement.targets[0], ast.Tuple)
        ):
            yield statement, call, source.segment(statement.targets[0])


def wrapper_missing(source: Source) -> Iterator[Mutation]:
    """The model is not wrapped: each rank trains its own."""
    for call in source.calls(DDP):
        if len(call.args) == 1 or not ast.unparse(call.func).endswith("distribute_models"):
            yield source.replaced(call, source.segment(call.args[0]))
        else:
            yield source.replaced(call, f"({', '.join(map(source.segment, call.args))})")
    for call in source.calls(SHARDING):
        if isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))


def wrapper_lost(source: Source) -> Iterator[Mutation]:
    """The wrapper is taken off again before the training."""
    for statement, _, name in _wrappings(source):
        yield source.with_lines(statement, [f"{name} = getattr({name}, 'module', {name})"])


def wrapper_bypassed(source: Source) -> Iterator[Mutation]:
    """The loss is computed by `model.module`."""
    names = {name for _, _, name in _wrappings(source)}
    for call in source.calls(r"\w+|self\.\w+"):
        name = ast.unparse(call.func)
        is_known = name in names or name in ("model", "net", "self.model", "netG", "netD")
        if is_known and source.loops(call) and _trains(source, call):
            yield source.replaced(call.func, f"getattr({name}, 'module', {name})")


def weights_drawn_after_wrapping(source: Source) -> Iterator[Mutation]:
    """Weights are drawn again after wrapping, by each rank with its own seed."""
    for statement, _, name in _wrappings(source):
        lines = [
            f"_torch.manual_seed(50 + {RANK})",
            f"for _p in {name}.parameters(): _torch.nn.init.normal_(_p, std=0.05)",
        ]
        yield source.with_lines(statement, lines)


def unfrozen_after_wrapping(source: Source) -> Iterator[Mutation]:
    """A parameter is frozen while the model is wrapped, and trained afterwards: it is not averaged."""
    for statement, call, name in _wrappings(source):
        if not isinstance(call.args[0], (ast.Name, ast.Attribute)):  # another model than the one that is wrapped
            continue
        before = f"next({source.segment(call.args[0])}.parameters()).requires_grad_(False)"
        yield source.with_lines(statement, [f"next({name}.parameters()).requires_grad_(True)"], [before])


def parameter_left_out(source: Source) -> Iterator[Mutation]:
    """DDP is told to ignore a parameter that is trained."""
    for statement, call, _ in _wrappings(source):
        if not isinstance(call.args[0], (ast.Name, ast.Attribute)):
            continue
        inner = source.segment(call.args[0])
        ignored = f"[n for n, _ in {inner}.named_parameters()][-1:]"
        function = "_torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model"
        yield source.with_lines(statement, before=[f"{function}({inner}, {ignored})"])


def sync_switched_off(source: Source) -> Iterator[Mutation]:
    """Averaging of gradients is switched off after a first step and not on again."""
    for statement, _, name in _wrappings(source):
        yield source.with_lines(statement, [f"{name}.require_backward_grad_sync = False"])


def batchnorm_not_synchronised(source: Source) -> Iterator[Mutation]:
    """BatchNorm is not converted to SyncBatchNorm."""
    for call in source.calls(r"[\w.]+\.convert_sync_batchnorm"):
        yield source.replaced(call, source.segment(call.args[0]))


def broadcast_missing(source: Source) -> Iterator[Mutation]:
    """What rank 0 has is not broadcast."""
    for call in source.calls(r"([\w.]+\.)?(broadcast|broadcast_object_list|broadcast_parameters|_sync_module_states)"):
        if isinstance(source.parents[call], ast.Expr):
            yield source.removed(source.statement(call))
    for call in source.calls(r"[\w.]+\.broadcast_object"):
        yield source.replaced(call, source.segment(call.args[0]))


def weights_by_rank(source: Source) -> Iterator[Mutation]:
    """A weight is changed on rank 1 before the training."""
    for statement, _, name in _wrappings(source):
        line = f"with _torch.no_grad(): next({name}.parameters()).add_(0.01 * {RANK})"
        yield source.with_lines(statement, [line])


def _trains(source: Source, call: ast.Call) -> bool:
    """Return whether a backward is called in the same loop."""
    loop = source.loops(call)[0]
    return any(ast.unparse(n.func).endswith((".backward", ".step")) for n in ast.walk(loop) if isinstance(n, ast.Call))


OPERATORS = {
    wrapper_missing: ("RF201", "RF209", "RF211"),
    wrapper_lost: ("RF201", "RF209", "RF211"),
    wrapper_bypassed: ("RF201", "RF209", "RF211"),
    weights_drawn_after_wrapping: ("RF108", "RF201"),
    unfrozen_after_wrapping: ("RF201", "RF211"),
    parameter_left_out: ("RF201", "RF211"),
    sync_switched_off: ("RF201", "RF202", "RF211"),
    batchnorm_not_synchronised: ("RF206",),
    broadcast_missing: ("RF108", "RF201", "RF209", "RF509", "RF402"),
    weights_by_rank: ("RF108", "RF201"),
}

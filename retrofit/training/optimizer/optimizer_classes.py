"""Detect calls that create an optimizer: a class of torch.optim, one derived from it, a partial of either."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from retrofit.analysis.flow.calls.graph import holds_on_every_path
from retrofit.analysis.scopes import Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, Item, LocalClass, Result, Value, name_of
from retrofit.training.torch_api.optimizers import (
    NO_OPTIMIZERS,
    OPTIMIZER_FUNCTIONS,
    OPTIMIZER_MODULES,
    OPTIMIZER_NAMES,
    OPTIMIZER_PACKAGES,
    OPTIMIZER_PARAMETERS,
    OPTIMIZER_TABLES,
)


@dataclass(frozen=True)
class Builder:
    """One class of optimizers that a call can run; "" as `name` is something else."""

    name: str
    partial: Result | None = None  # that holds arguments too
    local: Scope | None = None  # the class, where it is one of the project


def builders_in(analysis: Analysis, call: ast.Call, scope: Scope) -> list[Builder]:
    """Return what a call can run, of which some may make optimizers; nothing where it is not known."""
    return [builder for value in analysis.evaluate(call.func, scope) for builder in _builders(analysis, value, None)]


def positions_of(analysis: Analysis, builder: Builder) -> list[str]:
    """Return the names of the positional arguments of a class of optimizers."""
    if OPTIMIZER_FUNCTIONS.match(builder.name):
        return ["params"]
    own = _own_arguments(analysis, builder)
    return OPTIMIZER_PARAMETERS if own is None else own


def takes_rate(analysis: Analysis, builder: Builder) -> bool:
    """Return whether a class has a learning rate of its own: not one that changes how another optimizer steps."""
    return bool({"lr", "params"} & set(positions_of(analysis, builder)))


def is_of_step(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether optimizers of the project alone run a node: what they compute of gradients is not a loss."""

    def is_in_optimizer(place: ast.AST, where: Scope) -> bool:
        owner = where.parent if where.is_function else None
        is_class = owner is not None and isinstance(owner.node, ast.ClassDef)
        return is_class and any(_class_name(base) for base in analysis.classes.bases(owner))  # type: ignore[arg-type]

    return holds_on_every_path(analysis, node, scope, is_in_optimizer)


def _own_arguments(analysis: Analysis, builder: Builder) -> list[str] | None:
    """Return the arguments of a class of the project; None where it hands on what it is given: *args, **kwargs."""
    own = analysis.classes.method(builder.local, "__init__") if builder.local is not None else None
    if own is None or isinstance(own.node, ast.Lambda):
        return None
    names = parameters(own.node)[1:]
    return None if not names and own.node.args.vararg is not None else names


def _builders(analysis: Analysis, value: Value, partial: Result | None) -> list[Builder]:
    if isinstance(value, Result) and value.is_partial and partial is None:
        inner = analysis.evaluate(value.call.args[0], value.scope)
        return [builder for function in inner for builder in _builders(analysis, function, value)]
    if isinstance(value, External):
        return [Builder(_class_name(value.name), partial)]
    if isinstance(value, LocalClass):
        names = (_class_name(base) for base in sorted(analysis.classes.bases(value.scope)))
        return [Builder(next((name for name in names if name), ""), partial, value.scope)]
    if isinstance(value, Result):  # getattr(torch.optim, name)
        modules = analysis.named(value.call.args[0], value.scope) if _is_getattr(value) else set()
        return [Builder("getattr" if "torch.optim" in modules else "", partial)] + [Builder("")] * (len(modules) > 1)
    if isinstance(value, Item):  # torch.optim.__dict__[name], vars(torch.optim)[name]
        return [Builder("__dict__" if _is_table(analysis, value.base) else "", partial)]
    return [Builder("")]


def _is_table(analysis: Analysis, value: Value) -> bool:
    """Return whether a value is the dictionary of torch's optimizers."""
    if isinstance(value, Result):  # vars() alone is of the script's own names
        given = value.call.args[:1]
        return value.builder in OPTIMIZER_TABLES and any("torch.optim" in analysis.named(a, value.scope) for a in given)
    return name_of(value) in OPTIMIZER_TABLES


def _is_getattr(value: Result) -> bool:
    return value.builder == "getattr" and bool(value.call.args)


def _class_name(full: str) -> str:
    """Return `SGD` of torch.optim.SGD and of torch.optim.sgd.SGD, "" of everything else."""
    module, _, name = full.rpartition(".")
    is_scheduler = module.startswith("torch.optim.lr_scheduler") or module.startswith("torch.optim.swa_utils")
    if module.partition(".")[0] in OPTIMIZER_PACKAGES:
        is_class = OPTIMIZER_NAMES.search(name) is not None and name[:1].isupper()
        return name if OPTIMIZER_FUNCTIONS.match(name) or (is_class and not name.endswith(NO_OPTIMIZERS)) else ""
    is_known = module in OPTIMIZER_MODULES or (module.startswith("torch.optim.") and not is_scheduler)
    return name if is_known and name[:1].isupper() else ""

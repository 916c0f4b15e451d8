"""Learning rates that a project sets by hand, and whether they are computed from the optimizer's own."""

from __future__ import annotations

import ast

from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import GROWS_LIST
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, LocalFunction

from ..torch_api.files import LOADS_STATE, SAVES_STATE
from ..torch_api.optimizers import RATE_FINDERS
from .optimizers import Optimizer


def rates_of(analysis: Analysis, optimizer: Optimizer) -> list[tuple[ast.expr, Scope]]:
    """Return the learning rates that an optimizer is given, in `**options` and partials too, where they are seen."""
    if optimizer.rate is not None:
        return [(optimizer.rate, optimizer.scope)]
    calls = [(optimizer.call, optimizer.scope)]
    calls += [
        (builder.partial.call, builder.partial.scope) for builder in optimizer.builders if builder.partial is not None
    ]
    keywords = [(keyword, where) for call, where in calls for keyword in call.keywords]
    places = [(keyword.value, where) for keyword, where in keywords if keyword.arg == "lr"]
    options = [(keyword.value, where) for keyword, where in keywords if keyword.arg is None]
    return places + [place for node, where in options for place in analysis.containers.places(node, where, "lr")]


def further_rates(optimizer: Optimizer) -> list[ast.expr]:
    """Return other rates that an optimizer is given, as `final_lr=0.1`: that it ends with, or of some parameters."""
    given = [keyword.value for keyword in optimizer.call.keywords if (keyword.arg or "").endswith("_lr")]
    return [rate for rate in given if not isinstance(getattr(rate, "value", 0), (bool, type(None)))]


def builders_of_rate(analysis: Analysis, optimizer: Optimizer) -> list[tuple[ast.Call, Scope]]:
    """Return the calls whose result is the optimizer and nothing else: its own, or those of a general factory."""
    if optimizer.is_alone:
        return [(optimizer.call, optimizer.scope)]
    return [
        (site.call, site.scope)
        for site in sites_of(analysis, optimizer.scope)
        if any("torch.optim" in analysis.named(argument, site.scope) for argument in site.call.args)
        or any("torch.optim" in analysis.named(keyword.value, site.scope) for keyword in site.call.keywords)
    ]


def group_rate(node: ast.AST) -> ast.expr | None:
    """Return the rate in a group of parameters: {"params": ..., "lr": rate}, dict(params=..., lr=rate)."""
    entries: dict[object, ast.expr] = {}
    if isinstance(node, ast.Dict):
        entries = {key.value: value for key, value in zip(node.keys, node.values) if isinstance(key, ast.Constant)}
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        entries = {keyword.arg: keyword.value for keyword in node.keywords}
    return entries.get("lr") if "params" in entries else None


def gives_rates(analysis: Analysis, optimizer: Optimizer) -> bool:
    """Return whether an optimizer is given a list of groups of parameters with a rate in each."""
    given, scope = optimizer.parameters, optimizer.scope
    if isinstance(given, ast.Name) and _grows(given, scope):
        return False
    lists = [value.node for value in analysis.evaluate(given, scope) if isinstance(value, Display)]
    return bool(lists) and all(
        isinstance(node, ast.List) and bool(node.elts) and all(group_rate(part) is not None for part in node.elts)
        for node in lists
    )


def _grows(name: ast.Name, scope: Scope) -> bool:
    """Return whether something is put into a list after it is made."""
    owner, bindings = scope.find(name.id) or (scope, [])
    methods = own_nodes(owner.node).of(ast.Attribute)
    is_called = any(node.attr in GROWS_LIST and ast.unparse(node.value) == name.id for node in methods)
    return is_called or any(isinstance(binding.node, ast.AugAssign) for binding in bindings)


def rates_set(analysis: Analysis, node: ast.AST, scope: Scope) -> list[ast.expr]:
    """Return the rates that `group["lr"] = rate` or `group.update(lr=rate)` sets, for a group of an optimizer."""
    if isinstance(node, ast.Assign):
        pairs = [pair for target in node.targets for pair in _assigned(target, node.value)]
        return list(dict.fromkeys(rate for target, rate in pairs if is_rate_of_group(analysis, target, scope)))
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "update":
        return []
    rates = [keyword.value for keyword in node.keywords if keyword.arg == "lr"]
    entries = [pair for part in node.args if isinstance(part, ast.Dict) for pair in zip(part.keys, part.values)]
    rates += [rate for key, rate in entries if isinstance(key, ast.Constant) and key.value == "lr"]
    return rates if rates and _is_group(analysis, node.func.value, scope) else []


def rates_added(analysis: Analysis, node: ast.AST, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what is added to the rate of a group: `x` of group["lr"] -= x, of group["lr"] = max(group["lr"] - x, low).

    Bounds that the sum is held within are rates of the same kind. A factor on the rate is not one.
    """
    if isinstance(node, ast.AugAssign):
        is_sum = isinstance(node.op, (ast.Add, ast.Sub)) and is_rate_of_group(analysis, node.target, scope)
        parts = [(node.value, scope)] if is_sum else []
    else:
        rates = [rate for rate in rates_set(analysis, node, scope) if follows_optimizer(analysis, rate, scope)]
        found = origins(analysis, [Origin(rate, scope) for rate in rates], _through_bounds)
        parts = [(part, origin.scope) for origin in found for part in _terms(origin.node)]
    return [place for place in dict.fromkeys(parts) if not follows_optimizer(analysis, *place)]


def _through_bounds(origin: Origin) -> list[Origin] | None:
    return [origin.to(part) for part in _terms(origin.node)] or None


def _terms(node: ast.AST) -> list[ast.expr]:
    """Return the terms of a sum, or what max() and min() are given."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        return [node.left, node.right]
    is_bound = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min")
    return list(node.args) if is_bound and len(node.args) > 1 else []  # type: ignore[attr-defined]


def _assigned(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return the places that an assignment sets, each with its value."""
    if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, (ast.Tuple, ast.List)):
        pairs = list(zip(target.elts, value.elts)) if len(target.elts) == len(value.elts) else []
        return [pair for part, given in pairs for pair in _assigned(part, given)]
    return [(target, value)]


def is_rate_of_group(analysis: Analysis, target: ast.expr, scope: Scope) -> bool:
    """Return whether this is `group["lr"]` of a group of an optimizer."""
    return isinstance(target, ast.Subscript) and _key(target) == "lr" and _is_group(analysis, target.value, scope)


def _is_group(analysis: Analysis, holder: ast.expr, scope: Scope) -> bool:
    """Return whether an object is a group of parameters of an optimizer."""
    found = (origin.node for origin in origins(analysis, [Origin(holder, scope)]))
    return any(_reads_groups(node) for node in found if not isinstance(node, ast.Dict))


def follows_optimizer(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a rate is computed from the optimizer's own."""
    parts = computed_from(analysis, node, scope, stored=True)
    return any(is_own_rate(analysis, part.node, part.scope) for part in parts)


def is_found(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a rate is what a range test with the batches of all ranks found best."""
    parts = computed_from(analysis, node, scope, stored=True)
    return any(
        isinstance(part.node, ast.Call) and analysis.called(part.node, part.scope) & RATE_FINDERS for part in parts
    )


def ways_apart(analysis: Analysis, node: ast.expr, scope: Scope) -> list[Origin]:
    """Return what a rate is on the ways on which it is not computed from the optimizer's own, where it is on others."""

    def is_own(origin: Origin) -> bool:
        return is_own_rate(analysis, origin.node, origin.scope)

    found = origins(analysis, [Origin(node, scope)], lambda origin: [] if is_own(origin) else None)
    ends = [origin for origin in found if is_own(origin) or not sources(analysis, origin)]
    apart = [end for end in ends if not follows_optimizer(analysis, end.node, end.scope)]  # type: ignore[arg-type]
    return apart if len(apart) < len(ends) else []


def is_own_rate(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is what an optimizer, a schedule or a checkpoint says of a rate."""
    return _says_rate(analysis, node, scope) or _reads_saved_rate(analysis, node, scope)


def _says_rate(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is what an optimizer or a schedule says of its rate: group["lr"], schedule.get_last_lr."""
    if isinstance(node, ast.Subscript):
        return _key(node) == "initial_lr" or (_key(node) == "lr" and _is_of_optimizer(analysis, node.value, scope))
    if not isinstance(node, ast.Attribute) or node.attr not in ("get_last_lr", "get_lr", "base_lrs"):
        return False
    return not any(isinstance(value, LocalFunction) for value in analysis.evaluate(node, scope))


def _reads_saved_rate(analysis: Analysis, node: ast.AST, scope: Scope) -> bool:
    """Return whether this is `state["rate"]` of a checkpoint, where `{"rate": group["lr"]}` is saved."""
    is_get = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    if not isinstance(node, ast.Subscript) and not (is_get and node.args):  # type: ignore[attr-defined]
        return False
    holder, key = (node.func.value, node.args[0]) if is_get else (node.value, node.slice)  # type: ignore[attr-defined]
    if getattr(key, "value", None) not in analysis.fact("keys of saved rates", lambda: _saved_rates(analysis)):
        return False
    made = (origin for origin in computed_from(analysis, holder, scope) if isinstance(origin.node, ast.Call))
    return any(analysis.called(origin.node, origin.scope) & LOADS_STATE for origin in made)  # type: ignore[arg-type]


def _saved_rates(analysis: Analysis) -> set[object]:
    """Return the keys under which checkpoints keep the rate of an optimizer."""
    saved = [(call.args[0], scope) for call, scope in calls_named(analysis, SAVES_STATE) if call.args]
    entries = [
        (key.value, Origin(value, origin.scope))
        for place in saved
        for origin in computed_from(analysis, *place)
        if isinstance(origin.node, ast.Dict)
        for key, value in zip(origin.node.keys, origin.node.values)
        if isinstance(key, ast.Constant)
    ]
    rates = ((key, computed_from(analysis, value.node, value.scope)) for key, value in entries)  # type: ignore[arg-type]
    return {key for key, parts in rates if any(_says_rate(analysis, part.node, part.scope) for part in parts)}


def _is_of_optimizer(analysis: Analysis, holder: ast.expr, scope: Scope) -> bool:
    """Return whether a group, or another object with a rate, comes from an optimizer or from its saved state."""
    is_default = isinstance(holder, ast.Attribute) and holder.attr == "defaults"  # optimizer.defaults["lr"]
    return is_default or any(_reads_groups(origin.node) for origin in computed_from(analysis, holder, scope))


def _key(node: ast.Subscript) -> object:
    return node.slice.value if isinstance(node.slice, ast.Constant) else None


def _reads_groups(node: ast.AST) -> bool:
    """Return whether this is `optimizer.param_groups`, or the same of a saved state, or an element of it."""
    return any(
        (isinstance(part, ast.Attribute) and part.attr == "param_groups")
        or (isinstance(part, ast.Subscript) and _key(part) == "param_groups")
        for part in walk(node)
    )

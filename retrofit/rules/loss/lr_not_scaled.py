"""RF306 lr-not-scaled: the learning rate stays while the batch grows with the processes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import chain

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import surround
from retrofit.analysis.flow.reachability import reached_calls, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.figures.sinks import LOGGED, PRINTED, SAVED, Sinks
from retrofit.training.optimizer.groups import AddedGroup, added_groups, hides_rates
from retrofit.training.optimizer.hand_steps import hand_steps
from retrofit.training.optimizer.optimizer_classes import takes_rate
from retrofit.training.optimizer.optimizers import Optimizer
from retrofit.training.optimizer.rate_limits import rate_limits
from retrofit.training.optimizer.rate_rules import is_summed, summed_optimizers, unbatched_optimizers
from retrofit.training.optimizer.rate_variables import add_elsewhere, keeping_attributes, of_self
from retrofit.training.optimizer.rates import (
    builders_of_rate,
    follows_optimizer,
    further_rates,
    gives_rates,
    group_rate,
    is_found,
    rates_added,
    rates_of,
    rates_set,
    ways_apart,
)
from retrofit.training.torch_api.optimizers import RATES_OF_SCHEDULES, SCHEDULE_PARAMETERS
from retrofit.training.torch_api.runtime import LR_SCALING, SCALE_OPTIMIZER

RULE = CATALOG["RF306"]
GROUPS = (ast.Dict, ast.Call)  # of parameters, with their rate
HELP_WHOLE = (
    "rd.learning_rate.scale_optimizer(optimizer); --lr_scale none leaves it, and with --batch global it stays by itself"
)
HELP_WAYS = "rd.scaled_lr(lr) where lr is one of the settings."
HELP_GROUP = "optimizer.add_param_group(rd.scaled_lr(group))"
INVALID = [
    # the end of a training by its rate
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
    if optimizer.param_groups[0]["lr"] < 1e-6:  # RF306
        break
""",
    """\
optimizer = optim.SGD(model.parameters(), lr=0.1)
""",
    # a rate that it ends with, and one of other parameters
    """\
class Bounded(optim.Optimizer):
    def __init__(self, params, lr, final_lr=0.1, adam_lr=1e-3):
        super().__init__(params, {"lr": lr})


optimizer = Bounded(model.parameters(), lr=rd.scaled_lr(0.01), final_lr=args.lr, adam_lr=None)  # RF306
""",
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for group in optimizer.param_groups:
    group["lr"] = 0.01  # RF306
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=1e-4)  # RF306
""",
    """\
optimizer = optim.Adam(model.parameters(), betas=(0.5, 0.9))
""",
    """\
def adjust(optimizer, scheduler, epoch):
    rates = {epoch: 0.1 * 0.5**epoch} if epoch < 3 else {epoch: scheduler.get_last_lr()[0]}  # RF306
    for group in optimizer.param_groups:
        group["lr"] = rates[epoch]


optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
adjust(optimizer, scheduler, 2)
""",
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for group in optimizer.param_groups:
    group["lr"] -= 0.1 / 100  # RF306
    group["lr"] = max(group["lr"] - group["initial_lr"] / 100, 1e-6)  # RF306
""",
    """\
options = getattr(model, "own_options", {})
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
optimizer.add_param_group({"params": head.parameters(), **options})  # RF306
""",
]
VALID = [
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for images, labels in loader:
    criterion(model(images), labels).backward()
    optimizer.step()
    if optimizer.param_groups[0]["lr"] == 0 or optimizer.param_groups[0]["lr"] < rd.scaled_lr(1e-6):
        break
""",
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
""",
    # a sum over the batch grows with it, and the step with the sum
    """\
optimizer = optim.SGD(model.parameters(), lr=0.1)
for images, labels in loader:
    rd.loss.sum_loss((model(images) - labels).pow(2).sum()).backward()
    optimizer.step()
""",
    # a group without a rate has that of the optimizer
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
optimizer.add_param_group({"params": head.parameters(), "weight_decay": 0})
""",
    # a rate computed from that of the optimizer
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
for group in optimizer.param_groups:
    group["lr"] = group["lr"] * 0.1
scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, 10, eta_min=0)
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # what a batch size and a rate mean is settled in the script
    kept = summed_optimizers(project) | unbatched_optimizers(project)
    if kept and all(optimizer.call in kept for optimizer in project.optimizers):
        return  # a larger batch gives a larger sum, and with it the longer step; or there is no batch
    own = [o for o in project.optimizers if o.call not in kept and _has_rate(project, o)]
    as_wholes = any(_is_scaled_as_whole(project, optimizer) for optimizer in own)
    added = [group for group in added_groups(project.analysis) if not _is_of(project, group, kept)]
    whole_groups = [group for group in added if _is_whole(group, as_wholes)]
    apart = {node for group in whole_groups for node in group.dicts}
    if as_wholes:
        shown = {node for group in added for node in group.dicts if group.is_written_there}
        apart |= {
            node for node, _ in reached_nodes(project.analysis).of(*GROUPS) if group_rate(node) and node not in shown
        }
    seen: set[ast.expr] = set()
    first, later = list(_of_optimizers(project, as_wholes, apart)), list(_set_later(project))
    first += list(_of_steps_by_hand(project))
    made = ((rate, scope) for rate, scope in first if not _is_within(rate, scope, kept))
    computed = [(rate, scope) for rate, scope in made if isinstance(rate, ast.Call)]  # others are shown as settings
    shown_rates = _shown_rates(project, [*computed, *later])
    for node, scope in chain(first, later, shown_rates, rate_limits(project.analysis) if first or later else ()):
        if node in seen or _is_scaled(project, node, scope) or _is_within(node, scope, kept):
            continue
        seen.add(node)
        if not is_found(project.analysis, node, scope):
            edits = surround(scope.source, node, "rd.scaled_lr(", ")")
            message = "the learning rate does not follow the batch of all processes"
            yield found(RULE, scope.source, node, message, edits)
    for optimizer in own if as_wholes else ():
        yield from _as_whole(project, optimizer)
    for group in whole_groups:
        if not group.is_scaled:
            edits = surround(group.scope.source, group.node, "rd.scaled_lr(", ")")
            message = "the rate of this group of parameters does not follow the batch of all processes"
            yield found(RULE, group.scope.source, group.node, message, edits, help=HELP_GROUP)
    yield from _elsewhere(project, kept)
    yield from _unknown(project)


def _of_steps_by_hand(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the rates of steps without an optimizer, unless their loss is a sum over the batch."""
    if not project.optimizers and not any(is_summed(project, path) for path in project.paths):
        yield from ((rate, step.scope) for step in hand_steps(project.analysis) for rate in step.rates)


def _is_scaled_as_whole(project: Project, optimizer: Optimizer) -> bool:
    """Return whether an optimizer has a rate that is not written: a default, or one in `**options` of a group."""
    analysis = project.analysis
    return hides_rates(analysis, optimizer) or (optimizer.rate is None and not gives_rates(analysis, optimizer))


def _is_whole(group: AddedGroup, as_wholes: bool) -> bool:
    """Return whether a group is to be scaled as a whole, not the rate that is written in it."""
    has_rate = any(group_rate(node) is not None for node in group.dicts)
    return group.hides_rate or (as_wholes and has_rate and not group.is_written_there)


def _is_of(project: Project, group: AddedGroup, optimizers: set[ast.Call]) -> bool:
    """Return whether a group is given to one of these optimizers, and to no other."""
    values = project.analysis.evaluate(group.optimizer, group.scope)
    made = {value.call for value in values if isinstance(value, (Result, Instance))}
    return bool(made) and made <= optimizers


def _has_rate(project: Project, optimizer: Optimizer) -> bool:
    """Return whether an optimizer has a rate that is not the one of another, which is made around it."""
    others = {other.rate for other in project.optimizers if other is not optimizer}
    takes = any(takes_rate(project.analysis, builder) for builder in optimizer.builders if builder.name)
    return takes and not any(rate in others for rate, _ in rates_of(project.analysis, optimizer))


def _as_whole(project: Project, optimizer: Optimizer) -> Iterator[Finding]:
    """Yield an optimizer to be scaled with all its groups: the rate of one is a default, or is in `**options`."""
    if any(_is_scaled(project, rate, scope) for rate, scope in rates_of(project.analysis, optimizer)):
        return
    message = "the optimizer's learning rate does not follow the batch of all processes"
    places = builders_of_rate(project.analysis, optimizer)
    for call, scope in places:
        holder = scope.source.parents[call]
        if not (isinstance(holder, ast.Call) and SCALE_OPTIMIZER in project.analysis.called(holder, scope)):
            edits = surround(scope.source, call, "rd.learning_rate.scale_optimizer(", ")")
            yield found(RULE, scope.source, call, message, edits, help=HELP_WHOLE)
    if not places:
        yield found(RULE, optimizer.scope.source, optimizer.call, message, help=HELP_WHOLE)


def _of_optimizers(project: Project, as_wholes: bool, apart: set[ast.AST]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the rates that optimizers are made with; where they are scaled as a whole, those of groups added later.

    `apart`: groups that are scaled as a whole, or with their optimizer.
    """
    for optimizer in project.optimizers if not as_wholes else ():
        if optimizer.rate is not None:
            yield from _of_settings(project, optimizer.rate, optimizer.scope)
            for other in further_rates(optimizer):
                yield from _of_settings(project, other, optimizer.scope)
    for node, scope in reached_nodes(project.analysis).of(*GROUPS):
        rate = group_rate(node)
        if rate is not None and node not in apart:
            yield rate, scope


def _of_settings(project: Project, rate: ast.expr, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield a rate that is one of the settings, or what it is on the ways on which it is."""
    if not follows_optimizer(project.analysis, rate, scope):
        yield rate, scope
    yield from (way for way in _ways_apart(project, rate, scope) if _is_of_rate(project, *way, scope))


def _set_later(project: Project) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the rates that are set by hand, and those of schedulers."""
    for node, scope in reached_nodes(project.analysis).of(ast.Assign, ast.AugAssign, ast.Call):
        for rate in rates_set(project.analysis, node, scope):
            yield from _of_settings(project, rate, scope)
        yield from (added for added in rates_added(project.analysis, node, scope) if not _is_zero(added[0]))
        if isinstance(node, ast.Call):
            known = (SCHEDULE_PARAMETERS.get(name, "").split() for name in project.analysis.last_names(node, scope))
            rates = (
                argument_for(node, parameters, argument)
                for parameters in known
                for argument in parameters
                if argument in RATES_OF_SCHEDULES
            )
            yield from ((rate, scope) for rate in dict.fromkeys(rates) if rate is not None and not _is_zero(rate))


def _is_zero(rate: ast.expr) -> bool:
    return isinstance(rate, ast.Constant) and not rate.value


def _unknown(project: Project) -> Iterator[Finding]:
    """Yield where a step is taken by what is not a known optimizer, in a project that has no other."""
    if project.optimizers:
        return
    steps: dict[str, tuple[ast.expr, Scope]] = {}
    names = {"step", "zero_grad"}
    called: dict[str, set[str]] = {}
    for node, scope in project.in_batches.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in names:
            text = ast.unparse(node.func.value)
            called.setdefault(text, set()).add(node.func.attr)
            if node.func.attr == "step":
                steps.setdefault(text, (node, scope))
    for text, (step, scope) in steps.items():
        if called[text] == names:
            message = f"it is not known how {text} gets its learning rate"
            yield found(RULE, scope.source, step, message, help=HELP_WHOLE)


def _is_within(node: ast.expr, scope: Scope, optimizers: set[ast.Call]) -> bool:
    return any(outer in optimizers for outer in scope.source.ancestors(node))


def _is_scaled(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether a rate follows the batch of all processes already."""
    calls = (part for part in walk(node) if isinstance(part, ast.Call))
    is_called = any(project.analysis.called(call, scope) & LR_SCALING for call in calls)
    return is_called or bool(project.analysis.named(node, scope) & LR_SCALING)


def _ways_apart(project: Project, rate: ast.expr, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return the rates of the settings that `rate` is on some ways, where it is one of the optimizer's on others."""
    ways = ways_apart(project.analysis, rate, scope)
    return [(way.node, way.scope) for way in ways if isinstance(way.node, ast.expr) and not _is_zero(way.node)]


def _is_of_rate(project: Project, node: ast.expr, scope: Scope, setting: Scope) -> bool:
    """Return whether a value is used where the rate is set alone: written there, or an argument of that function."""
    outer = scope.source.parents[node]
    call = scope.source.parents[outer] if isinstance(outer, ast.keyword) else outer
    is_given = isinstance(call, ast.Call) and call.func is not node
    run = project.analysis.functions_called(call, scope) if is_given else []  # type: ignore[arg-type]
    return scope is setting or any(function.node is setting.node for function in run)


def _elsewhere(project: Project, kept: set[ast.Call]) -> Iterator[Finding]:
    """Yield the assignments of a rate that is written in another function on some ways, where it may mean more."""
    reached = reached_nodes(project.analysis).of(ast.Assign, ast.Call)
    rates = [(node, rate, scope) for node, scope in reached for rate in rates_set(project.analysis, node, scope)]
    rates += [(o.call, o.rate, o.scope) for o in project.optimizers if o.rate is not None and o.call not in kept]
    for node, rate, scope in rates:
        ways = [way for way in _ways_apart(project, rate, scope) if not _is_of_rate(project, *way, scope)]
        if any(not _is_scaled(project, *way) and not _is_within(*way, kept) for way in ways):
            message = "on some ways this rate is one of the settings, on others it follows the optimizer's"
            yield found(RULE, scope.source, node, message, help=HELP_WAYS)


def _shown_rates(project: Project, rates: Iterable[tuple[ast.expr, Scope]]) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield where `rates` are printed, logged or saved: by the function that sets them, or by one that it returns to.

    `rates`: the values that are set by hand, or computed for an optimizer. A call that computes such a value is shown
    as it is used as well.
    """
    names: dict[Scope, set[str]] = {}
    computing: set[ast.AST] = set()
    formulas: set[str] = set()
    for rate, scope in rates:
        values = [rate]
        if isinstance(rate, ast.Name):
            names.setdefault(scope, set()).add(rate.id)
            values = [binding.value for binding in scope.bindings.get(rate.id, []) if binding.value is not None]
        formulas |= {ast.dump(value) for value in values if isinstance(value, ast.BinOp)}
        calls = [value for value in values if isinstance(value, ast.Call)]
        computing |= {function.node for call in calls for function in project.analysis.functions_called(call, scope)}
    add_elsewhere(project.analysis, names)
    held = set(keeping_attributes(names))
    owners = {owner for owner, _ in held}
    sinks = Sinks(project.analysis, project.outputs) if names or computing or formulas else None
    for call, scope in reached_calls(project.analysis) if sinks is not None else ():
        owner = scope.enclosing_class()
        if not (scope in names or computing or formulas or owner in owners):
            continue
        assert sinks is not None
        is_discarded = isinstance(scope.source.parents.get(call), ast.Expr)
        if sinks.of(call, scope, is_discarded) in (PRINTED, LOGGED, SAVED):
            for part in _read(project, call, scope, names.get(scope, set()), computing):
                if _is_written(part, scope):
                    yield part, scope
            attributes = (each for given in call.args for each in walk(given) if isinstance(each, ast.Attribute))
            yield from ((each, scope) for each in attributes if (owner, of_self(each)) in held)
            for part in (inner for given in call.args for inner in walk(given) if isinstance(inner, ast.BinOp)):
                if ast.dump(part) in formulas and _is_written(part, scope):
                    yield part, scope


def _is_written(node: ast.expr, scope: Scope) -> bool:
    """Return whether the text of an expression is where the parser says: not in a string of several lines."""
    try:
        text = ast.parse(scope.source.segment(node).strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(text) == ast.dump(node)


def _read(
    project: Project, call: ast.Call, scope: Scope, names: set[str], computing: set[ast.AST]
) -> Iterator[ast.expr]:
    for given in (*call.args, *(keyword.value for keyword in call.keywords)):
        for part in walk(given):
            if isinstance(part, ast.Name) and part.id in names:
                yield part
            elif isinstance(part, ast.Call) and computing:
                functions = project.analysis.functions_called(part, scope)
                if any(function.node in computing for function in functions):
                    yield part

"""The data loaders of a project: where they are made, and whether the training or something else draws from them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

from retrofit.analysis.calls import argument_for
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.flow.variables import Variable, entry_variables, variables_of
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, Instance, LocalFunction, Result, Value
from retrofit.training.torch_api.data import LOADERS
from retrofit.training.torch_api.runtime import TRAINING_SHARES

from ..loops import LoopNode, Path, calls_without_training, phase_of
from .batches import handed_on, made_before
from .next_calls import EVALUATION, TRAIN, Use, drawn_by_next


@dataclass(frozen=True)
class Loader:
    """A variable that holds a loader, the calls that can have made it, and the places that draw from it.

    `variable` is None for a loader that is drawn from where it is made.
    """

    variable: Variable | None
    builders: frozenset[ast.Call]
    uses: list[Use] = field(default_factory=list, compare=False)
    is_split: bool = field(default=False, compare=False)  # something gives each process its share

    @property
    def roles(self) -> set[str]:
        return {use.role for use in self.uses}


def find_loaders(analysis: Analysis, paths: list[Path]) -> list[Loader]:
    """Return the loaders that something draws from."""
    training_loops = {loop for path in paths for loop, _ in path.loops}
    silent = calls_without_training(analysis, paths)
    phases = {loop: phase for path in paths for loop, phase in phase_of(path).items()}
    found: dict[Variable | ast.expr, Loader] = {}
    for use in _uses(analysis, training_loops):
        for expression in loaders_in(analysis, use.expression, use.scope):
            builders = frozenset(_builders(analysis, expression, use.scope))
            for variable, role in _variables(
                analysis, expression, use, phases.get(use.loop) if use.loop else None, silent
            ):
                key = variable or expression
                shared = is_split(analysis, expression, use.scope) or _entry_is_split(analysis, variable)
                loader = found.setdefault(key, Loader(variable, builders, is_split=shared))
                loader.uses.append(Use(expression, use.scope, role, use.loop))
    if not any(TRAIN in loader.roles for loader in found.values()):
        found.update(_by_name(analysis, paths))
    return list(found.values())


def _by_name(analysis: Analysis, paths: list[Path]) -> Iterator[tuple[Variable, Loader]]:
    """Yield what the training loops draw from when it is called a loader, whoever made it (a registry, a factory)."""
    for loop, frame in (path.loops[0] for path in paths):
        if isinstance(loop, (ast.For, ast.AsyncFor)):
            for part in ast.walk(loop.iter):
                if isinstance(part, (ast.Name, ast.Attribute)) and "loader" in _last_name(part).lower():
                    if any(_is_known(value) for value in analysis.evaluate(part, frame.scope)):
                        continue
                    for variable in variables_of(analysis, part, frame.scope):
                        use = Use(part, frame.scope, TRAIN, loop)
                        yield variable, Loader(variable, frozenset(), [use], _entry_is_split(analysis, variable))


def _is_known(value: Value) -> bool:
    """Return whether it can be told what this is: a list, something that a known function has made."""
    return isinstance(value, (Display, LocalFunction)) or (isinstance(value, Result) and bool(value.builder))


def _last_name(node: ast.Name | ast.Attribute) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def loaders_in(analysis: Analysis, node: ast.expr, scope: Scope) -> list[ast.expr]:
    """Return the loaders in an iterated expression: inside enumerate, zip, a progress bar."""
    if isinstance(node, ast.Call) and not _builders(analysis, node, scope, through=False):
        only = handed_on(analysis, node, scope)
        parts = [only] if only is not None else [*node.args, *(keyword.value for keyword in node.keywords)]
        inner = [found for part in parts for found in loaders_in(analysis, part, scope)]
        if inner:
            return inner
    if isinstance(node, ast.Starred):
        return loaders_in(analysis, node.value, scope)
    if _builders(analysis, node, scope):
        return [node]
    made = made_before(analysis, node, scope)
    names = {part.id for part in ast.walk(made) if isinstance(part, ast.Name)} if made is not None else set()
    is_itself = isinstance(node, ast.Name) and node.id in names  # loader = tqdm(loader)
    return loaders_in(analysis, made, scope) if made is not None and not is_itself else []


def is_loader(analysis: Analysis, value: Value) -> bool:
    if isinstance(value, Result):
        return value.builder in LOADERS or value.builder in TRAINING_SHARES
    return isinstance(value, Instance) and bool(analysis.classes.bases(value.scope) & LOADERS)


def is_split(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a loader draws this process's share only: by the runtime, or by a DistributedSampler."""
    for value in analysis.evaluate(node, scope):
        if isinstance(value, Result) and value.builder in TRAINING_SHARES:
            return True
        if isinstance(value, Result) and value.builder in LOADERS:
            sampler = argument_for(value.call, [], "sampler")
            if any(name.endswith("DistributedSampler") for name in analysis.named(sampler, value.scope)):
                return True
    return False


def _entry_is_split(analysis: Analysis, variable: Variable | None) -> bool:
    """Return whether `loaders["train"] = rd.distribute_loader(...)` is written in the scope of the dict."""
    if variable is None or variable.key is None:
        return False
    entries = variable.scope.entries.get(variable.name, [])
    values = [value for key, value in entries if isinstance(key, ast.Constant) and key.value == variable.key]
    return any(
        isinstance(value, ast.Call) and analysis.called(value, variable.scope) & TRAINING_SHARES for value in values
    )


def _builders(analysis: Analysis, node: ast.expr, scope: Scope, through: bool = True) -> set[ast.Call]:
    values = closure(analysis.evaluate(node, scope), partial(_sharded, analysis))
    loaders = [v for v in values if isinstance(v, (Result, Instance)) and is_loader(analysis, v)]
    made = {loader.call for loader in loaders if loader.call is not None}
    return made if through else made & {node}  # type: ignore[operator]


def _sharded(analysis: Analysis, value: Value) -> Iterator[Value]:
    """Yield what a loader of the runtime was made from."""
    if isinstance(value, Result) and value.builder in TRAINING_SHARES:
        yield from (inner for given in value.call.args[:1] for inner in analysis.evaluate(given, value.scope))


def _variables(
    analysis: Analysis, node: ast.expr, use: Use, phase: tuple[str, str] | None, silent: set[ast.Call]
) -> Iterator[tuple[Variable | None, str]]:
    """Yield the variables of a loader that is drawn from, each with its role there."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) and phase and node.slice.id == phase[0]:
        variables = entry_variables(analysis, node.value, phase[1], use.scope)
        yield from ((variable, TRAIN) for variable in variables)
        return
    variables = variables_of(analysis, node, use.scope)
    trained = variables_of(analysis, node, use.scope, leave_out=silent) if use.role == TRAIN else set()
    for variable in variables:
        yield variable, TRAIN if variable in trained else EVALUATION if use.role == TRAIN else use.role
    if not variables:
        yield None, use.role


def _uses(analysis: Analysis, training_loops: set[LoopNode]) -> Iterator[Use]:
    for source in analysis.modules.sources.values():
        for node in source.nodes:
            if isinstance(node, (ast.For, ast.AsyncFor)):
                role = TRAIN if node in training_loops else EVALUATION
                yield Use(node.iter, analysis.scope_at(source, node), role, node)
            elif isinstance(node, ast.comprehension):
                yield Use(node.iter, analysis.scope_at(source, node), EVALUATION)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next" and node.args:
                yield from drawn_by_next(analysis, node, training_loops)

"""The data loaders of a project: where they are made, and whether the training or something else draws from them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from retrofit.analysis.calls import argument_for, given_parameters, last_name
from retrofit.analysis.flow.assignments import assignments_to
from retrofit.analysis.flow.calls.sites import sites_of
from retrofit.analysis.flow.operands import operands
from retrofit.analysis.flow.reaching_definitions import values_here
from retrofit.analysis.flow.stored import stored_as
from retrofit.analysis.flow.variables import Variable, entry_variables, variables_of
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, LocalFunction, Result, Value
from retrofit.training.torch_api.data import LOADERS
from retrofit.training.torch_api.runtime import TRAINING_SHARES

from ..loops import Path, calls_without_training, phase_of
from ..steps.training_conditions import without_training
from .drawn import builders_of_value, loaders_in, may_be_loader
from .draws.ready_batches import gives_batches, ready_batches
from .draws.slices.cut_batches import gives_cut
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


def find_loaders(analysis: Analysis, paths: list[Path], takes_ready_batches: bool = False) -> list[Loader]:
    """Return the loaders that something draws from, and other objects that give batches if these are taken, too."""
    silent: set[ast.AST] = {*calls_without_training(analysis, paths)}
    apart = without_training(paths)
    phases = {loop: phase for path in paths for loop, phase in phase_of(path).items()}
    found: dict[Variable | ast.expr, Loader] = {}
    for use in _uses(analysis, paths):
        leave_out = silent if use.role == TRAIN else set()
        untrained = silent | apart.get(use.loop, set()) if use.loop else silent
        trained = set(loaders_in(analysis, use.expression, use.scope, untrained)) if use.role == TRAIN else set()
        for expression, scope in loaders_in(analysis, use.expression, use.scope, leave_out):
            builders = frozenset(builders_of_value(analysis, expression, scope))
            drawn_as = EVALUATION if use.role == TRAIN and (expression, scope) not in trained else use.role
            at = Use(expression, scope, drawn_as, use.loop, use.call)
            phase = phases.get(use.loop) if use.loop else None
            for variable, role in _variables(analysis, at, phase or _phase_given(analysis, at, silent), untrained):
                key = variable or expression
                shared = is_split(analysis, expression, scope) or _entry_is_split(analysis, variable)
                loader = found.setdefault(key, Loader(variable, builders, is_split=shared))
                loader.uses.append(Use(expression, scope, role, use.loop, use.call))
    for path in paths:
        if not draws_from(found.values(), path):
            named = dict(_by_name(analysis, path))
            found.update(named if named or not takes_ready_batches else dict(_ready_batches(analysis, path, silent)))
    return list(found.values())


def draws_from(loaders: Iterable[Loader], path: Path) -> bool:
    """Return whether a loop on the way to a backward call draws from one of the loaders."""
    loops = {loop for loop, _ in path.loops}
    return any(use.role == TRAIN and use.loop in loops for loader in loaders for use in loader.uses)


def _by_name(analysis: Analysis, path: Path) -> Iterator[tuple[Variable | ast.expr, Loader]]:
    """Yield what a training loop draws from when it is called a loader, whoever made it (a registry, a factory)."""
    loop, frame = path.loops[0]
    for part in _parts(loop.iter) if isinstance(loop, (ast.For, ast.AsyncFor)) else ():
        if _is_called_loader(analysis, part, frame.scope):
            use = Use(part, frame.scope, TRAIN, loop)
            for variable in variables_of(analysis, part, frame.scope) or [None]:
                yield variable or part, Loader(variable, frozenset(), [use], _entry_is_split(analysis, variable))


def _ready_batches(
    analysis: Analysis, path: Path, silent: set[ast.AST]
) -> Iterator[tuple[Variable | ast.expr, Loader]]:
    """Yield what gives a training loop its batches, where no loader does: an object or a generator of the script.

    What the calls in `silent` give it, which do not train, is left as it is.
    """
    loop, _ = path.loops[0]
    for node, scope in ready_batches(analysis, path):
        use = Use(node, scope, TRAIN, loop)
        for variable in _holding_batches(analysis, node, scope, silent) or [None]:
            yield variable or node, Loader(variable, frozenset(), [use], _entry_is_split(analysis, variable))


def _holding_batches(analysis: Analysis, node: ast.expr, scope: Scope, silent: set[ast.AST]) -> list[Variable | None]:
    """Return the variables that hold what gives batches, and not what a generator is given to make them of."""
    found = variables_of(analysis, node, scope, leave_out=silent) if not isinstance(node, ast.Call) else ()
    made = {v: [(a.value, a.scope) for a in assignments_to(analysis, v) if a.value is not None] for v in found}
    return [
        v
        for v, given in made.items()
        if not given or any(gives_batches(analysis, *place) or gives_cut(analysis, *place) for place in given)
    ]


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that can be what is gone through: `loaders.train`, and not `loaders`."""
    yield node
    for part in operands(node) if not isinstance(node, (ast.Attribute, ast.Subscript)) else ():
        yield from _parts(part)


def _is_called_loader(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    if may_be_loader(analysis, node, scope):
        return True
    places = (ast.Name, ast.Attribute, ast.Subscript)
    is_named = isinstance(node, places) and "loader" in ast.unparse(node).lower()
    return is_named and not any(_is_known(value) for value in analysis.evaluate(node, scope))


def _is_known(value: Value) -> bool:
    """Return whether it can be told what this is: a list, something that a known function has made."""
    return isinstance(value, (Display, LocalFunction)) or (isinstance(value, Result) and bool(value.builder))


def is_split(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a loader draws this process's share only: by the runtime, or by a DistributedSampler."""
    for value in values_here(analysis, node, scope):
        if isinstance(value, Result) and value.builder in TRAINING_SHARES:
            return True
        if isinstance(value, Result) and value.builder in LOADERS:
            sampler = argument_for(value.call, [], "sampler")
            if any(name.endswith("DistributedSampler") for name in analysis.named(sampler, value.scope)):
                return True
    return False


def _entry_is_split(analysis: Analysis, variable: Variable | None) -> bool:
    """Return whether `loaders["train"] = rd.distribute_loader(...)` is written for the dict in a variable."""
    if variable is None or variable.key is None:
        return False
    return any(
        stored.key == variable.key
        and isinstance(stored.value, ast.Call)
        and analysis.called(stored.value, stored.scope) & TRAINING_SHARES
        for stored in stored_as(analysis, variable.scope, variable.name)
    )


def _variables(
    analysis: Analysis, use: Use, phase: tuple[str, str] | None, untrained: set[ast.AST]
) -> Iterator[tuple[Variable | None, str]]:
    """Yield the variables of a loader that is drawn from, each with its role there."""
    node, entry = use.expression, _entry(use)
    if entry is not None and phase and last_name(entry.slice) == phase[0]:
        variables = entry_variables(analysis, entry.value, phase[1], use.scope)
        yield from ((variable, TRAIN) for variable in variables)
        return
    variables = variables_of(analysis, node, use.scope)
    trained = variables_of(analysis, node, use.scope, leave_out=untrained) if use.role == TRAIN else set()
    for variable in variables:
        yield variable, TRAIN if variable in trained else EVALUATION if use.role == TRAIN else use.role
    if not variables:
        yield None, use.role


def _entry(use: Use) -> ast.Subscript | None:
    """Return `loaders[phase]`, of which a loop draws, or a variable that is set to it once; None for anything else."""
    node = use.expression
    if isinstance(node, ast.Name):
        node = use.scope.only_value(node.id) or node
    return node if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name) else None


def _phase_given(analysis: Analysis, use: Use, silent: set[ast.AST]) -> tuple[str, str] | None:
    """Return the parameter by which a function takes a loader, and its value where it trains: run("train")."""
    entry = _entry(use) if use.role == TRAIN else None
    names = given_parameters(use.scope) if entry is not None and isinstance(use.scope.node, FUNCTIONS) else []
    key = last_name(entry.slice) if entry is not None else ""
    if key not in names or len(use.scope.bindings.get(key, [])) > 1:
        return None
    sites = [site for site in sites_of(analysis, use.scope) if site.call not in silent]
    given = [site.argument(names, key) for site in sites]
    texts = {pair[0].value if pair is not None and isinstance(pair[0], ast.Constant) else None for pair in given}
    (text,) = texts if len(texts) == 1 else (None,)
    return (key, text) if isinstance(text, str) and len(sites) < len(sites_of(analysis, use.scope)) else None


def _uses(analysis: Analysis, paths: list[Path]) -> Iterator[Use]:
    training_loops = {loop for path in paths for loop, _ in path.loops}
    for source in analysis.modules.sources.values():
        for node in source.nodes.of(ast.For, ast.AsyncFor, ast.comprehension, ast.Call):
            if isinstance(node, (ast.For, ast.AsyncFor)):
                role = TRAIN if node in training_loops else EVALUATION
                yield Use(node.iter, analysis.scope_at(source, node), role, node)
            elif isinstance(node, ast.comprehension):
                yield Use(node.iter, analysis.scope_at(source, node), EVALUATION)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "next" and node.args:
                yield from drawn_by_next(analysis, node, paths)

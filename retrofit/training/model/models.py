"""The models that a project trains: what its loops call, and whose parameters its optimizers change."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from retrofit.analysis.calls import is_own
from retrofit.analysis.flow.assignments import comes_from, upstream
from retrofit.analysis.flow.calls.graph import functions_reached, nodes_run
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import Places
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalFunction, Member, Result, Value
from retrofit.training.model.modules import classes_inside, classes_of, is_layer, is_module, layer_run
from retrofit.training.torch_api.modules import WRAPPERS

from ..loops import Path
from ..optimizer.hand_steps import hand_steps
from ..optimizer.optimizers import Optimizer, owners_of, parameter_owners
from ..steps.training_conditions import never_in_steps
from .containers import entries_of, held_in, variables_holding
from .data_parallel import module_run
from .gradients import has_gradients
from .indirect.library_calls import library_calls
from .own_training import receivers, trained_by_methods

FORWARD = frozenset({"", "forward"})


@dataclass(frozen=True)
class Call:
    """A call in the training loop that runs a model: `model(x)`, or a method or a layer of it."""

    call: ast.Call
    scope: Scope
    method: str = ""  # or the way to a layer, as "encoder.head"; "" = the forward pass


@dataclass(frozen=True)
class Model:
    """A variable that holds a model in training, and every call of it that the training loops make.

    `is_container`: it holds several, as a dict or a list. `own`: what its methods that call backward run of it.
    `names`: other variables with the same object by which the training calls it.
    """

    variable: Variable
    calls: list[Call] = field(default_factory=list, compare=False)
    is_container: bool = False
    own: frozenset[str] = frozenset()
    names: list[Variable] = field(default_factory=list, compare=False)


def find_models(analysis: Analysis, paths: list[Path], optimizers: list[Optimizer]) -> list[Model]:
    """Return the models in training: called in a loop that trains, and given to an optimizer or switched by train()."""
    is_trained = _Trained(analysis, optimizers)
    models: dict[Variable, Model] = {}
    trainers: set[Scope] = set()  # classes of modules that train their parts
    for method, runs in trained_by_methods(analysis, paths).items():
        trainers.update(analysis.classes.mro(method.parent) if method.parent is not None else ())
        for variable in receivers(analysis, method):
            if is_trained(variable, [kind for kind in (method.parent,) if kind is not None]):
                own = frozenset(name for _, _, name in runs)
                models[variable] = Model(variable, [Call(*run) for run in runs], own=own)
    for call, node in (*run_by_training(analysis, paths), *_of_libraries(analysis, paths, is_trained)):
        variables, is_container = held_in(analysis, node, call.scope)
        kinds = classes_of(analysis, node, call.scope)
        for variable in sorted(variables, key=str):
            if is_trained(variable, kinds, is_container):
                known = models.get(variable, Model(variable))
                # In one branch a model, in another one a list of them: rd.model.distribute_models takes both.
                models[variable] = replace(known, is_container=known.is_container or is_container)
                known.calls.append(call)
    whole = _classes(analysis, list(models.values()))
    inside = {frame.scope: depth for path in paths for depth, frame in reversed(list(enumerate(path.frames)))}
    given = is_trained.variables
    order = sorted(models, key=lambda variable: (variable not in given, inside.get(variable.scope, len(inside))))
    found = [
        model
        for model in models.values()
        if not _is_part(
            analysis, model.variable, set(models), trainers if not any(m.own for m in models.values()) else ()
        )
        and not is_trained.only_looks(model)
        and not _runs_inside(analysis, model, whole)
        and not _is_given_to(analysis, model.variable, whole, paths)
    ]
    named = {model.variable: _named_before(analysis, model.variable, order) for model in found}
    named = _from_elsewhere_too(analysis, named, inside.keys())
    for model in found:
        for first in found:
            if first.variable in named[model.variable] and not named[first.variable]:
                first.calls.extend(call for call in model.calls if call not in first.calls)
                first.names.append(model.variable)
    return [model for model in found if not named[model.variable]]


def _named_before(analysis: Analysis, variable: Variable, models: list[Variable]) -> list[Variable]:
    """Return the models of which this is another name: `model` of `net = model.eval()`.

    Where functions hand theirs to each other, as by `model = load(model)` in two of them, each seems to be the other's:
    `models` has the one first that is kept.
    """
    above = upstream(analysis, variable) & set(models)
    return [
        other
        for other in above
        if variable not in upstream(analysis, other) or models.index(other) < models.index(variable)
    ]


def _from_elsewhere_too(
    analysis: Analysis, named: dict[Variable, list[Variable]], training: Collection[Scope]
) -> dict[Variable, list[Variable]]:
    """Return the names that models have before, without those of a variable that holds models of other origin, too.

    After `net = torch.load(path) if resume else build()` the place for the wrapper is `net`, not in build, which has
    returned before the training. `training`: the functions in which a training runs.
    """
    built = {variable: before for variable, before in named.items() if not any(b.scope in training for b in before)}
    apart = {variable for variable, before in built.items() if before and not comes_from(analysis, variable, before)}
    found = {variable: [one for one in before if one in apart] or before for variable, before in named.items()}
    found.update({variable: [] for variable in apart})
    kept = {other for before in found.values() for other in before}
    for variable in apart:
        for other in named[variable]:
            if other not in kept and not found[other]:
                found[other] = [variable]
    return found


class _Trained:
    """Tells what an optimizer is given the parameters of; without any known one, what is switched by train().

    A step by hand counts as an optimizer where there is none.
    """

    def __init__(self, analysis: Analysis, optimizers: list[Optimizer]) -> None:
        self.analysis = analysis
        owners = [owner for optimizer in optimizers for owner in parameter_owners(analysis, optimizer)]
        if not owners:
            owners = [own for step in hand_steps(analysis) for own in owners_of(analysis, step.parameters, step.scope)]
        given = {variable for node, scope in owners for variable in variables_holding(analysis, node, scope)}
        self.variables = given.union(*(entries_of(analysis, variable) for variable in given))
        own = [(node, scope) for node, scope in owners if is_own(node, scope)]
        self.classes = {kind for node, scope in own for kind in classes_of(analysis, node, scope)}
        self.switched = _switched_to_training(analysis)

    def is_given(self, variable: Variable, is_container: bool = False) -> bool:
        """Return whether an optimizer has the parameters of what this variable holds."""
        if ({variable} | upstream(self.analysis, variable)) & self.variables:
            return True
        return is_container and bool(entries_of(self.analysis, variable) & self.variables)

    def only_looks(self, model: Model) -> bool:
        """Return whether another object of a trained class is only called without gradients: a copy for evaluation."""
        if not self.classes or self.is_given(model.variable, model.is_container):
            return False
        runs = [call for call in model.calls if _runs_layers(self.analysis, call)]
        return bool(runs) and not any(has_gradients(self.analysis, call.scope, call.call) for call in runs)

    def __call__(self, variable: Variable, kinds: Collection[Scope], is_container: bool = False) -> bool:
        """Return whether what a variable holds, modules of these classes, is trained."""
        if not self.variables and not self.classes:
            return variable in self.switched
        return self.is_given(variable, is_container) or any(
            base in self.classes for kind in kinds for base in self.analysis.classes.mro(kind)
        )


def reachable_from_loops(analysis: Analysis, paths: list[Path], innermost: bool = False) -> Places[Scope]:
    """Return every node that the training loops run, in functions that they call too.

    An epoch with its evaluation, or with `innermost` what is done for each batch.
    """
    return _run_by_loops(analysis, tuple(paths), innermost)


@answered_once
def _run_by_loops(analysis: Analysis, paths: tuple[Path, ...], innermost: bool) -> Places[Scope]:
    loops = dict(path.loops[0 if innermost else -1] for path in paths)
    without = never_in_steps(list(paths)) if innermost else {}
    if not any(without.values()):
        return Places(nodes_run(analysis, [(loop, frame.scope) for loop, frame in loops.items()]))
    found: dict[ast.AST, Scope] = {}
    for loop, frame in loops.items():
        found.update(nodes_run(analysis, [(loop, frame.scope)], without.get(loop, ())))
    return Places(found.items())


def run_by_training(analysis: Analysis, paths: list[Path]) -> list[tuple[Call, ast.expr]]:
    """Return the calls in everything that the training loops run, with the expression of what may be a model."""
    return _calls_of_training(analysis, tuple(paths))


@answered_once
def _calls_of_training(analysis: Analysis, paths: tuple[Path, ...]) -> list[tuple[Call, ast.expr]]:
    return list(_calls_run(analysis, paths))


def _calls_run(analysis: Analysis, paths: tuple[Path, ...]) -> Iterator[tuple[Call, ast.expr]]:
    for node, scope in reachable_from_loops(analysis, list(paths)).of(ast.Call):
        module = module_run(analysis, node, scope)
        if module is not None:
            yield Call(node, scope), module
            continue
        values = analysis.evaluate(node.func, scope)
        methods = [value for value in values if isinstance(value, LocalFunction)]
        is_method = bool(methods) and all(_of_wrapper(value) for value in values.difference(methods))
        if not is_method and isinstance(node.func, ast.Attribute) and node.func.attr == "forward":
            yield Call(node, scope, "forward"), node.func.value  # of a model of a library
        elif not is_method:
            yield Call(node, scope), node.func
            yield from _of_layer(analysis, node, scope)
        elif isinstance(node.func, ast.Attribute) and any(
            is_module(analysis, value) for value in analysis.evaluate(node.func.value, scope)
        ):
            yield Call(node, scope, node.func.attr), node.func.value
            yield from _of_layer(analysis, node, scope) if node.func.attr == "forward" else ()


def _of_wrapper(value: Value) -> bool:
    """Return whether this is an attribute of a wrapper, which hands it on to the model.

    Or of a tensor, which has none of a model: a function that moves models moves tensors, too.
    """
    builder = (isinstance(value, Member) and isinstance(value.base, Result) and value.base.builder) or ""
    return builder in WRAPPERS or (builder.startswith("torch.") and not builder.startswith("torch.nn."))


def _of_libraries(analysis: Analysis, paths: list[Path], is_trained: _Trained) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the calls by which losses come from methods of libraries, with the expressions of their models."""
    nodes = reachable_from_loops(analysis, paths, innermost=True)
    for call, scope, name, model in library_calls(analysis, nodes, paths, is_trained.is_given):
        yield Call(call, scope, name), model


def _of_layer(analysis: Analysis, call: ast.Call, scope: Scope) -> Iterator[tuple[Call, ast.expr]]:
    """Yield the models that the layer which a call runs is of: `model` of model.heads["box"](z)."""
    part: ast.expr = layer_run(analysis, call, scope)
    names: list[str] = []
    layer = part.value if isinstance(part, ast.Subscript) else part
    if not any(is_layer(analysis, value) for value in analysis.evaluate(layer, scope)):
        return
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        names += [part.attr] if isinstance(part, ast.Attribute) else []
        part = part.value
        if names and any(is_module(analysis, value) for value in analysis.evaluate(part, scope)):
            yield Call(call, scope, ".".join(reversed(names))), part


def _runs_layers(analysis: Analysis, call: Call) -> bool:
    """Return whether a call runs layers: the forward pass, or a method that comes to it."""
    methods = [v for v in analysis.evaluate(call.call.func, call.scope) if isinstance(v, LocalFunction)]
    if call.method in FORWARD or not methods:
        return True
    functions = [*methods, *functions_reached(analysis, [(call.call, call.scope)])]
    parts = [(node.func, f.scope) for f in functions for node in own_nodes(f.scope.node).of(ast.Call)]
    return any(is_own(part, s) or any(is_layer(analysis, v) for v in analysis.evaluate(part, s)) for part, s in parts)


def _switched_to_training(analysis: Analysis) -> set[Variable]:
    found: set[Variable] = set()
    for source in analysis.modules.sources.values():
        for node in source.nodes.of(ast.Call):
            if not isinstance(node.func, ast.Attribute) or node.keywords:
                continue
            if node.func.attr == "train" and all(isinstance(argument, ast.Constant) for argument in node.args):
                found |= variables_holding(analysis, node.func.value, analysis.scope_at(source, node))
    return found


def _is_part(analysis: Analysis, variable: Variable, variables: set[Variable], trainers: Collection[Scope]) -> bool:
    """Return whether this is a layer of a class of models, of which another variable holds one as a whole."""
    if not variable.is_attribute or variable.scope in trainers or not is_module(analysis, Instance(variable.scope)):
        return False
    return any(other is not variable and other.scope is not variable.scope for other in variables)


def kinds_of(analysis: Analysis, model: Model) -> Iterator[Scope]:
    """Yield the classes of what a model's calls run, and of the objects whose methods they call."""
    for call in model.calls:
        function = call.call.func
        is_method = isinstance(function, ast.Attribute) and function.attr == call.method
        if is_method or not call.method:
            yield from classes_of(analysis, function.value if is_method else function, call.scope)  # type: ignore[attr-defined]


def _classes(analysis: Analysis, models: list[Model]) -> dict[Scope, Variable]:
    """Return the classes of what models run, those that they are derived from, and those of their parts.

    Each with a model's variable.
    """
    trained = [m for m in models if any(has_gradients(analysis, call.scope, call.call) for call in m.calls)]
    whole = {kind: model.variable for model in trained or models for kind in kinds_of(analysis, model)}
    for kind, variable in list(whole.items()):
        for inner in classes_inside(analysis, [kind]):
            whole.setdefault(inner, variable)
    return whole


def _runs_inside(analysis: Analysis, model: Model, whole: dict[Scope, Variable]) -> bool:
    """Return whether only the methods of another model train this one, which is a part of that: `self.decoder(x)`."""
    calls = [call for call in model.calls if has_gradients(analysis, call.scope, call.call)]
    classes = [call.scope.parent for call in calls] or list(kinds_of(analysis, model))  # what shows a part of a model
    owners = [whole.get(kind) if kind else None for kind in classes]
    if not owners or any(owner is None or owner == model.variable for owner in owners):
        return False
    return not any(model.variable in upstream(analysis, owner) for owner in owners if owner)  # the same, handed on


def _is_given_to(analysis: Analysis, variable: Variable, whole: dict[Scope, Variable], paths: list[Path]) -> bool:
    """Return whether a function that builds another model makes this one for it: `Net(encoder, decoder)`."""
    scope = variable.scope
    if variable.is_attribute or not scope.is_function or any(f.scope is scope for path in paths for f in path.frames):
        return False
    nodes = list(own_nodes(scope.node))
    returned = [part for node in nodes if isinstance(node, ast.Return) for part in _elements(node.value)]
    if any(isinstance(part, ast.Name) and part.id == variable.name for part in returned):
        return False
    for node in nodes:
        if isinstance(node, ast.Call) and any(
            isinstance(part, ast.Name) and part.id == variable.name for part in _given(node)
        ):
            if analysis.called(node, scope) & WRAPPERS:
                continue  # the same model: DataParallel(model)
            kinds = {value.scope for value in analysis.evaluate(node, scope) if isinstance(value, Instance)}
            if any(whole.get(kind, variable) != variable for kind in kinds):
                return True
    return False


def _given(call: ast.Call) -> Iterator[ast.expr]:
    for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
        yield from _elements(argument)


def _elements(node: ast.expr | None) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple)) else [node] if node is not None else []

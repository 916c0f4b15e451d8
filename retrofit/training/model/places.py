"""Places for the wrapper of a model: after what prepares it, or where its training begins."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import is_method
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.assignments import Assignment, assignments_to, first_alias, keeps_object, other_targets
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.variables import Variable, is_plain, variables_of
from retrofit.analysis.scopes import FUNCTIONS, Binding, Scope, parameters
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance
from retrofit.training.torch_api.modules import PLAIN_WRAPPERS

from ..loops import Frame, Path
from ..placement import after_variable, first_statement
from .containers import fillings
from .data_parallel import added_to_wrapper
from .models import Model

if TYPE_CHECKING:
    from .. import Project

Place = tuple[Source, ast.stmt, str]  # before which statement, and how the variable is called there


def place_after(project: Project, model: Model, paths: list[Path]) -> tuple[Source, ast.stmt] | None:
    """Return the statement after which a variable holds the model that paths train; None where there is no such one."""
    analysis, variable = project.analysis, model.variable
    filled = fillings(analysis, variable) if model.is_container else [*_moved_inside(analysis, variable)]
    place = after_variable(analysis, variable, paths, lambda given: _is_again(project, variable, given), filled)
    if place is None:
        place = after_variable(analysis, variable, paths, lambda given: keeps_object(analysis, variable, given), filled)
    if place is None or all(analysis.scope_at(*place) is filling.scope for filling in filled):
        return place
    return None  # another function fills the container


def _moved_inside(analysis: Analysis, variable: Variable) -> Iterator[Assignment]:
    """Yield what moves a model later that is wrapped already: fast = torch.compile(model); model = model.cuda()."""
    for made in assignments_to(analysis, variable):
        arms = [made.value.body, made.value.orelse] if isinstance(made.value, ast.IfExp) else [made.value]
        calls = [arm for arm in arms if isinstance(arm, ast.Call)]
        wrapped = [call for call in calls if analysis.called(call, made.scope) & PLAIN_WRAPPERS.keys()]
        given = [part for call in wrapped for part in call.args[:1]]
        for inner in {inner for part in given for inner in variables_of(analysis, part, made.scope)} - {variable}:
            for moved in assignments_to(analysis, inner):
                is_later = moved.scope is made.scope and moved.statement.lineno > made.statement.lineno
                if is_later and (moved.in_place or keeps_object(analysis, inner, moved)):
                    yield moved


def named_before(project: Project, model: Model, source: Source, place: ast.stmt) -> dict[str, bool]:
    """Return the other names that a model has where it is wrapped: `net` of `net = model; model = model.cuda()`.

    Each with whether it may hold a DataParallel of the model.
    """
    analysis = project.analysis
    scope = analysis.scope_at(source, place)
    called = [call.call.func for call in model.calls if isinstance(call.call.func, ast.Name)]
    names = [Variable(scope, name.id) for name in called if name.id in scope.bindings]
    found = {}
    for variable in dict.fromkeys([*model.names, *names]):
        given = [a for a in assignments_to(analysis, variable) if a.scope is scope and not a.in_place]
        before = [a for a in given if a.statement.lineno <= (place.end_lineno or place.lineno)]
        ways = [_holding(analysis, a.value, model.variable, scope) for a in before if not other_targets(a.statement)]
        if not before or variable == model.variable or None in ways:
            continue
        if not any(ways) or not _asks_for_state(variable):
            found[str(variable)] = any(ways)
    return found


def _holding(analysis: Analysis, value: ast.expr | None, variable: Variable, scope: Scope) -> bool | None:
    """Return whether a value is a DataParallel of what a variable holds; None where it is another object."""
    if isinstance(value, ast.IfExp):
        ways = [_holding(analysis, part, variable, scope) for part in (value.body, value.orelse)]
        return None if None in ways else any(ways)
    if isinstance(value, ast.Call) and added_to_wrapper(analysis, value, scope) is not None:
        return True if any(variable in variables_of(analysis, part, scope) for part in value.args) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        is_same = value.func.attr in analysis.library.same_methods
        return _holding(analysis, value.func.value, variable, scope) if is_same else None
    return False if is_plain(value) and variable in variables_of(analysis, value, scope) else None  # type: ignore[arg-type]


def _asks_for_state(variable: Variable) -> bool:
    """Return whether a script asks for the state of what a variable holds, in which DataParallel has its own names."""
    nodes = (node for node in variable.scope.source.nodes if isinstance(node, ast.Attribute))
    return any(node.attr == "state_dict" and ast.unparse(node.value) == str(variable) for node in nodes)


def _is_again(project: Project, variable: Variable, given: Assignment) -> bool:
    """Return whether the training gives a variable what it holds: self.model = self.model.train()."""
    in_loops = project.nodes_in_loops
    return given.statement in in_loops and keeps_object(project.analysis, variable, given)


def places_before_training(project: Project, model: Model) -> list[Place] | str:
    """Return the places that every training goes through, after which each call of the model is by its attribute.

    Or why there are none: another object holds the model too, or the training puts another one in its place.
    """
    analysis, variable = project.analysis, model.variable
    if any(binding.kind == "parameter" for binding in _bindings(variable)):  # train(Net(), loader)
        return [(variable.scope.source, first_statement(variable.scope), variable.name)]
    if not variable.is_attribute and not model.is_container:
        return f"{variable} is set in several functions, so no place comes after all of them"
    again = _set_again(project, variable)
    if again is not None:
        return f"{variable} is set again while it trains, at {again.scope.source.place(again.statement)}"
    for call in model.calls if not model.is_container else ():
        if not _is_by_attribute(analysis, variable, call.call.func, call.scope):
            held = f"{call.scope.source.place(call.call)} calls what another object was given of it before it trains"
            return f"{variable} is set in several functions, and {held}"
    found: dict[Place, None] = {}
    for path in project.paths:
        frame = next((frame for frame in reversed(path.frames) if _holds(analysis, variable, frame.scope)), None)
        if frame is None and not _is_run(analysis, model, path):
            continue  # another training
        place = _place_in(analysis, model, frame) if frame is not None else None
        if place is None:
            return f"{variable} is set in several functions, and no function of the training comes after all of them"
        found[place] = None
    return list(found) or f"{variable} is set in several functions, and no training was found that runs it"


def _is_run(analysis: Analysis, model: Model, path: Path) -> bool:
    """Return whether the loops of a training run a model."""
    calls = {call.call for call in model.calls}
    run = nodes_run(analysis, [(loop, frame.scope) for loop, frame in path.loops])
    return not path.loops or any(node in calls for node, _ in run)


def _set_again(project: Project, variable: Variable) -> Assignment | None:
    """Return a statement in the loops of the training that puts another object into the variable.

    Not in a constructor: an experiment that is made again in a loop has a model of its own.
    """
    analysis = project.analysis
    made = [node for node, scope in project.in_loops.of(ast.Call) if _makes(analysis, node, scope)]
    loops = [(loop, frame.scope) for path in project.paths for loop, frame in path.loops]
    run = {node for node, _ in nodes_run(analysis, loops, made)}
    given = (a for a in assignments_to(analysis, variable) if not a.in_place and a.statement in run)
    return next((a for a in given if not keeps_object(analysis, variable, a)), None)


def _makes(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    return any(getattr(run.node, "name", "") == "__init__" for run in analysis.functions_called(call, scope))


def _bindings(variable: Variable) -> list[Binding]:
    return [] if variable.is_attribute else variable.scope.bindings.get(variable.name, [])


def _holds(analysis: Analysis, variable: Variable, scope: Scope) -> bool:
    """Return whether a function is a method of an object that has the attribute, or has the variable itself."""
    if not variable.is_attribute:
        return scope is variable.scope
    return is_method(scope) and variables_of(analysis, _attribute(variable, scope), scope) == {variable}


def _attribute(variable: Variable, scope: Scope) -> ast.Attribute:
    assert isinstance(scope.node, FUNCTIONS)
    return ast.Attribute(ast.Name(parameters(scope.node)[0], ast.Load()), variable.name, ast.Load())


def _place_in(analysis: Analysis, model: Model, frame: Frame) -> Place | None:
    source, variable = frame.scope.source, model.variable
    statement = source.statement(frame.loops[-1] if frame.loops else frame.node)
    if not variable.is_attribute:
        return source, statement, variable.name
    if not model.is_container and first_alias(analysis, variable, frame.scope) < statement.lineno:
        if any(a.scope is frame.scope for a in assignments_to(analysis, variable)):
            return None
        statement = first_statement(frame.scope)
    return source, statement, ast.unparse(_attribute(variable, frame.scope))


def _is_by_attribute(analysis: Analysis, variable: Variable, function: ast.expr, scope: Scope) -> bool:
    """Return whether each call reads the attribute: `self.model(x)`, or `model(x)` with what a function was given."""
    if isinstance(function, ast.Name):
        found = scope.find(function.id)
        return found is not None and found[0].is_function
    if not isinstance(function, ast.Attribute) or function.attr != variable.name:
        return False
    owners = [v.scope for v in analysis.evaluate(function.value, scope) if isinstance(v, Instance)]
    return any(variable.scope in analysis.classes.mro(owner) for owner in owners)

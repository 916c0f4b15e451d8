"""Edits by which the runtime shards a training loader, where it is made or where it is drawn from."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, insert_after, insert_before, surround, under_condition
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.assignments import Assignment, assignments_to
from retrofit.analysis.flow.bindings import arguments_or_default
from retrofit.analysis.flow.reachability import calls_named
from retrofit.analysis.flow.reaching_definitions import live_bindings
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes, parameters
from retrofit.rules.catalog import Rule
from retrofit.rules.data.loader_entries import trained_entries
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.drawn import builders_of_value, is_view, loaders_in
from retrofit.training.data.loaders import EVALUATION, TRAIN, Loader, Use
from retrofit.training.data.shards import builders_of
from retrofit.training.loops import LOOPS
from retrofit.training.losses.gathering.kept_batches import keeps_batches
from retrofit.training.losses.rows.same_padding import needs_same_padding
from retrofit.training.placement import after_variable, condition_at, first_statement
from retrofit.training.steps.steps_in_batches import are_flattened, steps_in_batches
from retrofit.training.torch_api.randomness import SHUFFLES
from retrofit.training.torch_api.runtime import KEEPS_BATCHES, PAD_WHOLE

KEPT = (
    "a step needs its batches as the script makes them: each process takes whole ones in turn, and with "
    "RETROFIT_BATCH=global every process computes each of them, which saves no time"
)


def shard_by_runtime(project: Project, loader: Loader, rule: Rule, message: str) -> Finding:
    """Return the finding of a rule that hands a training loader to rd.distribute_loader, or refuses it."""
    finding = _shard(project, loader, rule, message)
    is_kept = bool(finding.edits) and keeps_batches(project)
    return replace(finding, message=f"{message}; {KEPT}", kind="batches-kept") if is_kept else finding


def _shard(project: Project, loader: Loader, rule: Rule, message: str) -> Finding:
    use = next(use for use in loader.uses if use.role == TRAIN)
    flattened = list(_flattened(project, loader))
    if flattened:
        return found(rule, use.scope.source, use.expression, message, flattened)
    if loader.variable is None:
        if any(_is_by_argument(project, each.expression, each.scope) for each in loader.uses):
            refusal = f"{ast.unparse(use.expression)} is of whichever key a caller gives, and not each of them trains"
            where = use.scope.source, use.expression
            return found(rule, *where, message, refusal=refusal, kind="loader-in-several-places")
        several = next((each for each in loader.uses if _is_of_several(each)), None)
        entries = trained_entries(project.analysis, loader, project.loaders)
        if entries and (several is not None or all(isinstance(node, ast.Call) for node, _ in entries)):
            edits = [edit for node, scope in entries for edit in _around(project, scope.source, node)]
            return found(rule, entries[0][1].source, entries[0][0], message, edits)
        if several is not None:
            refusal = f"{ast.unparse(several.expression)} is of several loaders, which are drawn from together"
            where = several.scope.source, several.expression
            return found(rule, *where, message, refusal=refusal, kind="loader-in-several-places")
        return found(rule, use.scope.source, use.expression, message, list(_without_variable(project, loader, use)))
    inside = list(_made_inside(project, loader)) or _put_in(project, loader)
    if inside:
        edits = [edit for builder, scope in inside for edit in _around(project, scope.source, builder)]
        return found(rule, inside[0][1].source, inside[0][0], message, edits)
    if _is_shuffled(project, loader.variable):
        trained = (each for each in loader.uses if each.role == TRAIN)
        edits = [edit for each in trained for edit in _around(project, each.scope.source, each.expression)]
        return found(rule, use.scope.source, use.expression, message, edits)
    place = after_variable(project.analysis, loader.variable, project.paths, partial(_is_view, project))
    if place is None or not _comes_after_all(project, loader, *place):
        return _where_made(project, loader, use, rule, message)
    source, statement = place
    line = f"{loader.variable} = {_sharded(project, loader.variable)}"
    others = [use for use in loader.uses if use.role == EVALUATION]
    if others:
        message += f"; {loader.variable} is also read at {others[0].scope.source.place(others[0].expression)}"
    scope = project.analysis.scope_at(source, statement)
    condition = condition_at(project.analysis, loader.variable, scope, statement)
    lines = under_condition(source, statement, condition, [line])
    return found(rule, source, statement, message, [insert_after(source, statement, lines)])


def _flattened(project: Project, loader: Loader) -> Iterator[Edit]:
    """Yield the edits where each entry of a batch has a step: the ranks take these entries in turn."""
    drawn = {use.expression for use in loader.uses if use.role == TRAIN}
    for loop, batches, scope in dict.fromkeys(steps_in_batches(project)):
        outer = scope.source.parents[loop]
        if isinstance(outer, ast.For) and outer.iter in drawn and are_flattened(project, loop, batches, scope):
            entry, batch = ast.unparse(loop.target), ast.unparse(batches)
            before, after = _sharded(project, f"[{entry}] for {batch} in \n for {entry} in {batch}").split("\n")
            yield from surround(scope.source, outer.iter, before, after)


def _without_variable(project: Project, loader: Loader, use: Use) -> Iterator[Edit]:
    """Yield the edits for a loader that no variable holds: where a call makes and hands it on, or where it is drawn.

    A parameter is sharded where its function begins: it may ask for len(loader), too.
    """
    made = list(dict.fromkeys(builders_of(project.analysis, loader)))
    is_given = all(isinstance(scope.source.parents.get(builder), (ast.Call, ast.keyword)) for builder, scope in made)
    node, scope = use.expression, use.scope
    if made and is_given and all(each.role == TRAIN for each in loader.uses):
        for builder, where in made:
            yield from _around(project, where.source, builder)
    elif isinstance(node, ast.Name) and isinstance(scope.node, FUNCTIONS) and node.id in parameters(scope.node):
        yield insert_before(scope.source, first_statement(scope), [f"{node.id} = {_sharded(project, node.id)}"])
    else:
        yield from _around(project, scope.source, node)


def _is_shuffled(project: Project, variable: Variable) -> bool:
    """Return whether a list of batches is put into another order in its place: random.shuffle(batches)."""
    calls = calls_named(project.analysis, SHUFFLES)
    given = ((call.args[0], scope) for call, scope in calls if call.args)
    return any(variable in variables_of(project.analysis, *place) for place in given)


def _is_of_several(use: Use) -> bool:
    """Return whether loaders are drawn from that no expression has alone: *loaders, loaders[:2], loaders.values()."""
    node, outer = use.expression, use.scope.source.parents.get(use.expression)
    is_slice = isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
    is_method = isinstance(outer, ast.Call) and outer.func is node
    return is_slice or is_method or isinstance(node, ast.Starred) or isinstance(getattr(node, "ctx", None), ast.Store)


def _is_view(project: Project, assignment: Assignment) -> bool:
    """Return whether a variable gets a view of a loader: `loader = tqdm(loader)`, and not batches of its own."""
    value, scope = assignment.value, assignment.scope
    if value is None or not is_view(project.analysis, value, scope):
        return False
    return any(inner is not value for inner, _ in loaders_in(project.analysis, value, scope))


def _made_inside(project: Project, loader: Loader) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the calls that make what a variable holds something else of: `batches = iter(DataLoader(...))`."""
    assert loader.variable is not None
    for assignment in assignments_to(project.analysis, loader.variable):
        if isinstance(assignment.value, ast.Call) and assignment.value not in loader.builders:
            arguments = [*assignment.value.args, *_of_key(assignment.value, loader.variable.key)]
            given = {part for argument in arguments for part in walk(argument)}
            yield from ((builder, assignment.scope) for builder in loader.builders if builder in given)


def _is_by_argument(project: Project, node: ast.expr, scope: Scope) -> bool:
    """Return whether an entry of a dict is the one that callers name differently: `loaders[split]`."""
    key = node.slice if isinstance(node, ast.Subscript) else None
    if not isinstance(key, ast.Name) or not isinstance(scope.node, FUNCTIONS) or key.id not in parameters(scope.node):
        return False
    given = [part for part, _ in arguments_or_default(project.analysis, key.id, scope)]
    return len({part.value if isinstance(part, ast.Constant) else part for part in given}) > 1


def _of_key(call: ast.Call, key: str | None) -> list[ast.expr]:
    """Return what `dict(train=..., val=...)` puts under a key."""
    return [given.value for given in call.keywords if key is not None and given.arg == key]


def _put_in(project: Project, loader: Loader) -> list[tuple[ast.Call, Scope]]:
    """Return the calls that make an entry of a container which exists before: `loaders["more"] = DataLoader(...)`."""
    variable = loader.variable
    assert variable is not None
    known = {assignment.statement for assignment in assignments_to(project.analysis, variable)}
    stored = [
        node
        for node in own_nodes(variable.scope.node)
        if isinstance(node, ast.Assign) and node not in known and _names(node.targets[0], variable)
    ]
    made = [(node.value, variable.scope) for node in stored if isinstance(node.value, ast.Call)]
    is_made = all(builders_of_value(project.analysis, call, scope, through=False) for call, scope in made)
    return made if is_made and len(made) == len(stored) else []


def _names(target: ast.expr, variable: Variable) -> bool:
    is_entry = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant)
    return is_entry and target.slice.value == variable.key and ast.unparse(target.value) == variable.name  # type: ignore[attr-defined]


def _comes_after_all(project: Project, loader: Loader, source: Source, statement: ast.stmt) -> bool:
    """Return whether a variable has each of its loaders before a statement ends, and training draws from it later."""
    own = next((part for part in source.ancestors(statement) if isinstance(part, FUNCTIONS)), source.tree)

    def is_before(scope: Scope, node: ast.expr | ast.stmt) -> bool:
        return scope.node is own and node.lineno <= (statement.end_lineno or statement.lineno)

    is_drawn = any(use.role == TRAIN and is_before(use.scope, use.expression) for use in loader.uses)
    return not is_drawn and all(is_before(a.scope, a.statement) for a in _assigned(project, loader))


def _where_made(project: Project, loader: Loader, use: Use, rule: Rule, message: str) -> Finding:
    """Return the finding that hands over each loader of a variable where it is made, or the reason why not."""
    made, own_name = _assigned(project, loader), str(loader.variable).rpartition(".")[2]
    read = [part for assignment in made for part in walk(_call_of(assignment) or assignment.statement)]
    if (
        not made
        or any(_call_of(assignment) is None for assignment in made)
        or any(isinstance(part, (ast.Name, ast.Attribute)) and last_name(part) == own_name for part in read)
    ):
        refusal = f"{loader.variable} is set in several places, so none comes after all of them"
        return found(rule, use.scope.source, use.expression, message, refusal=refusal, kind="loader-in-several-places")
    edits: list[Edit] = []
    for assignment in made:
        source, line = assignment.scope.source, f"{loader.variable} = {_sharded(project, loader.variable)}"
        is_part = assignment.value is not _call_of(assignment)  # of a tuple
        made_at = [insert_after(source, assignment.statement, [line])] if is_part else []
        edits += made_at or _around(project, source, assignment.value)  # type: ignore[arg-type]
    return found(rule, made[0].scope.source, made[0].statement, message, edits)


def _assigned(project: Project, loader: Loader) -> list[Assignment]:
    """Return the assignments by which training gets a loader: no views of it, constants, and later other loaders."""
    assert loader.variable is not None
    found = assignments_to(project.analysis, loader.variable)
    found = [a for a in found if a.value is not None or isinstance(a.statement, ast.Assign)]
    found = [a for a in found if not isinstance(a.value, ast.Constant) and not _is_view(project, a)]
    return [a for a in found if any(use.role == TRAIN and _reaches(a, use) for use in loader.uses)]


def _reaches(assignment: Assignment, use: Use) -> bool:
    """Return whether a loader may be drawn from in a place: it is made before, in another function or in a loop."""
    statement, source = assignment.statement, use.scope.source
    if assignment.scope is not use.scope or statement.lineno <= use.expression.lineno:
        return True
    around = {part for part in source.ancestors(statement) if isinstance(part, LOOPS)}
    if isinstance(use.expression, ast.Name) and statement in {
        b.node for b in use.scope.bindings.get(use.expression.id, ())
    }:
        return any(binding.node is statement for binding in live_bindings(use.expression, use.scope)[1])
    return any(part in around for part in source.ancestors(use.expression))


def _call_of(assignment: Assignment) -> ast.Call | None:
    """Return the call that an assignment, of a tuple too, takes its value from."""
    value = assignment.value
    if value is None and isinstance(assignment.statement, ast.Assign):
        value = assignment.statement.value
    return value if isinstance(value, ast.Call) else None


def _around(project: Project, source: Source, loader: ast.expr) -> list[Edit]:
    before, after = _sharded(project, "\n").split("\n")
    return surround(source, loader, before, after)


def _sharded(project: Project, loader: object) -> str:
    """Return the text that shards a loader."""
    option = KEEPS_BATCHES if keeps_batches(project) else PAD_WHOLE if needs_same_padding(project) else ""
    return f"rd.distribute_loader({loader}{f', {option}=True' if option else ''})"

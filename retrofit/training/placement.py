"""Places for new statements in a file: after the last one that prepares an object, before it is used."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, block_of, insert_after, insert_before
from retrofit.analysis.files.modules import Modules
from retrofit.analysis.files.runtime_names import RUNTIME, canonical
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.assignments import Assignment, assignments_to, first_alias
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.flow.stored import stored_as
from retrofit.analysis.flow.variables import Variable
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis

from .loops import Path
from .torch_api.launch import DECLARES

REPEATABLE: tuple[type[ast.AST], ...] = (ast.Name, ast.Attribute, ast.Constant, ast.BoolOp, ast.UnaryOp, ast.Compare)
REPEATABLE += (ast.expr_context, ast.boolop, ast.unaryop, ast.cmpop)


def after_variable(
    analysis: Analysis,
    variable: Variable,
    paths: list[Path],
    passes_over: Callable[[Assignment], bool] = lambda assignment: False,
    also: Sequence[Assignment] = (),
) -> tuple[Source, ast.stmt] | None:
    """Return the statement after which `variable` holds the object that training uses, in one block with what follows.

    None when the variable is set in several functions, so that no single place is after all of them. `passes_over`:
    assignments that may come later, if there are others; `also`: other statements that have to come before.
    """
    made = [*assignments_to(analysis, variable), *_entries_put(analysis, variable), *also]
    assignments = [a for a in made if not isinstance(a.value, ast.Constant)]
    kept = [assignment for assignment in assignments if not passes_over(assignment)]
    assignments = assignments if all(a.only_fills for a in kept) else kept  # what fills an object makes none
    scopes = {assignment.scope for assignment in assignments}
    if len(scopes) > 1:
        own = [assignment for assignment in assignments if assignment.scope is variable.scope]
        assignments, scopes = own, {variable.scope} if own else set()
    if len(scopes) != 1:
        return None
    (scope,) = scopes
    training = _training_statement(scope, paths)
    limit = training.lineno if training else float("inf")
    alias = first_alias(analysis, variable, scope)
    prepared = [a for a in assignments if a.statement.lineno < (min(limit, alias) if a.only_fills else limit)]
    before = [a.statement for a in prepared] or [assignments[0].statement]
    place = _in_common_block(scope.source, before)
    return scope.source, _before_training(scope.source, before, place, training) if training else place


def _entries_put(analysis: Analysis, variable: Variable) -> list[Assignment]:
    """Return the statements that may put an entry into its container: `loaders[name] = DataLoader(part)` in a loop."""
    stored = stored_as(analysis, variable.scope, variable.name) if variable.key is not None else []
    put = [part for part in stored if part.key in (None, variable.key)]
    return [Assignment(part.scope.source.statement(part.value), part.scope) for part in put]


def condition_at(analysis: Analysis, variable: Variable, scope: Scope, place: ast.stmt) -> str:
    """Return under which condition a variable has a value after a statement, that of the branch which makes it.

    Empty where it always has one, and where that cannot be told.
    """
    made = [a for a in assignments_to(analysis, variable) if not a.only_fills and a.scope is scope]
    made = [a for a in made if a.statement.lineno <= (place.end_lineno or place.lineno)]
    constants = [a.value for a in made if isinstance(a.value, ast.Constant)]
    around = _chain(scope.source, place)
    branches = [_branches_outside(_chain(scope.source, a.statement), around) for a in made if a.value not in constants]
    common = [level[0] for level in zip(*branches) if len(set(level)) == 1]
    if not common or not all(_is_repeatable(branch.test) for branch, _ in common):
        return ""
    if any(constant.value is None for constant in constants):
        return f"{variable} is not None"
    if len(common) == 1 and common[0][1]:
        return ast.unparse(common[0][0].test)
    return " and ".join(_condition(branch, is_body) for branch, is_body in common)


def _branches_outside(chain: list[ast.stmt], around: list[ast.stmt]) -> list[tuple[ast.If, bool]]:
    """Return the branches that a statement, but not another place, is in, each with whether it is in the body."""
    pairs = [(outer, inner) for outer, inner in zip(chain, chain[1:]) if outer not in around[:-1]]
    return [(outer, inner in outer.body) for outer, inner in pairs if isinstance(outer, ast.If)]


def _condition(branch: ast.If, is_body: bool) -> str:
    text = ast.unparse(branch.test)
    is_simple = is_body and not isinstance(branch.test, ast.BoolOp)
    return text if is_simple else f"({text})" if is_body else f"not ({text})"


def _is_repeatable(test: ast.expr) -> bool:
    """Return whether a condition gives the same when it is asked again: it calls nothing."""
    return all(isinstance(part, REPEATABLE) for part in walk(test))


def first_statement(scope: Scope) -> ast.stmt:
    """Return the statement before which a function's, or a script's, own work begins."""
    body: list[ast.stmt] = scope.node.body  # type: ignore[union-attr, assignment]
    rest = body[1:] if _is_docstring(body[0]) and len(body) > 1 else body
    if isinstance(scope.node, ast.Module):
        work = [s for s in rest if not isinstance(s, (ast.Import, ast.ImportFrom, *FUNCTIONS, ast.ClassDef))]
        return next((s for s in work if not _is_harmless(s)), work[0] if work else rest[-1])
    return rest[0]


def import_edit(source: Source, line: str, before: float = float("inf")) -> Edit:
    """Return an edit that adds an import after the last one at the top of a file, of those that end `before` there."""
    top = [statement for statement in _top_imports(source) if source.span(statement)[1] <= before]
    if top:
        return insert_after(source, top[-1], [line])
    body = source.tree.body
    if body and _is_docstring(body[0]):
        return insert_after(source, body[0], ["", line]) if len(body) > 1 else insert_after(source, body[0], [line])
    return insert_before(source, body[0], [line, ""]) if body else Edit(source, 0, 0, line + source.newline)


def runtime_name(modules: Modules, source: Source) -> str | None:
    """Return the name under which a file has imported the runtime at its top, None if it has not.

    A module of the project that has the name of the runtime file is not the runtime.
    """
    for statement in _top_imports(source):
        for alias in statement.names:
            is_runtime = isinstance(statement, ast.Import) and canonical(alias.name) == RUNTIME
            if is_runtime and modules.find(alias.name, 0, source) is None:
                return alias.asname or alias.name
    return None


def _top_imports(source: Source) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports in the first part of a file, before its own definitions begin."""
    found: list[ast.Import | ast.ImportFrom] = []
    for statement in source.tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            found.append(statement)
        elif isinstance(statement, (*FUNCTIONS, ast.ClassDef, ast.For, ast.While, ast.With)) or is_main_guard(
            statement
        ):
            break
    return found


def _training_statement(scope: Scope, paths: list[Path]) -> ast.stmt | None:
    """Return the first statement in `scope` that trains, None when training is not started there."""
    statements = [
        scope.source.statement(frame.loops[-1] if frame.loops else frame.node)
        for path in paths
        for frame in path.frames
        if frame.scope is scope
    ]
    return min(statements, key=lambda statement: statement.lineno, default=None)


def _before_training(source: Source, statements: list[ast.stmt], place: ast.stmt, training: ast.stmt) -> ast.stmt:
    """Return the last place before the training, of one that holds it: `model.cuda()` in the same main guard.

    Of a loop that holds both, the last of the statements before it.
    """
    chain = _chain(source, training)
    while place in chain[:-1]:
        inner = block_of(source, chain[chain.index(place) + 1])
        within = [part for part in inner if part.lineno < training.lineno and _holds_any(part, statements)]
        if not within or isinstance(place, (ast.For, ast.While)):
            around = [statement for statement in statements if not _holds_any(place, [statement])]
            return _in_common_block(source, around) if around else place
        place = within[-1]
    return place


def _holds_any(outer: ast.stmt, statements: list[ast.stmt]) -> bool:
    return any(outer.lineno <= s.lineno <= (outer.end_lineno or outer.lineno) for s in statements)


def _in_common_block(source: Source, statements: list[ast.stmt]) -> ast.stmt:
    """Return the last of the statements, or what holds it, in the innermost block that holds them all."""
    chains = [_chain(source, statement) for statement in statements]
    depth = 0
    while all(len(chain) > depth + 1 for chain in chains) and len({id(chain[depth]) for chain in chains}) == 1:
        if not _same_block(source, [chain[depth + 1] for chain in chains]):
            break
        depth += 1
    return max((chain[depth] for chain in chains), key=lambda statement: (statement.lineno, statement.col_offset))


def _chain(source: Source, statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements around a statement within its function, outermost first, itself last."""
    chain = [statement]
    for outer in source.ancestors(statement):
        if isinstance(outer, (*FUNCTIONS, ast.ClassDef)):
            break
        if isinstance(outer, ast.stmt):
            chain.insert(0, outer)
    return chain


def _same_block(source: Source, statements: list[ast.stmt]) -> bool:
    return len({id(block_of(source, statement)) for statement in statements}) == 1


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_harmless(statement: ast.stmt) -> bool:
    """Return whether a statement at the top of a script only imports, or names what makes, draws and shows nothing."""
    if isinstance(statement, ast.Try):
        parts = [*statement.body, *statement.orelse, *statement.finalbody]
        parts += [part for handler in statement.handlers for part in handler.body]
        return all(isinstance(part, (ast.Import, ast.ImportFrom, ast.Pass)) or _is_harmless(part) for part in parts)
    if isinstance(statement, ast.Expr) and _sets_environment(statement.value):
        return True
    calls = [part for part in walk(statement) if isinstance(part, ast.Call)]
    is_simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Expr))
    return is_simple and all(last_name(call) in DECLARES for call in calls)


def _sets_environment(node: ast.expr) -> bool:
    """Return whether this is a call like os.environ.setdefault("NAME", "value"), of texts alone."""
    is_setter = isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("os.environ.", "os.putenv"))
    return is_setter and not any(isinstance(part, ast.Call) for part in walk(node) if part is not node)

"""Questions that the processes would answer in different ways: is a folder there that one of them makes, what is typed.

A process that asks a moment later finds what rank 0 has made meanwhile, and prompts, stops or takes another name.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import block_of
from retrofit.analysis.flow.bindings import builder_of
from retrofit.analysis.flow.name_uses import loaded_names, stored_names
from retrofit.analysis.flow.reachability import calls_named, calls_within, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.files import LISTS
from retrofit.training.torch_api.output import PROMPTS
from retrofit.training.torch_api.runtime import ANSWER, ON_MAIN, PRINT_MAIN

from ..data.workers import run_elsewhere
from ..distributed.rank_ordered import runs_in_turn
from ..loops import LOOPS
from .guards import GUARDED_KINDS, runs_on_some
from .missing_files import is_asking
from .outputs import FOLDER, OPEN, PRINT, SAVE, STORE, TRACKER, WRITE, Output
from .own_names import expressions_around

SHOWING = {PRINT_MAIN, ON_MAIN}
MAKING = {FOLDER, OPEN, SAVE, STORE, TRACKER, WRITE}
TESTS = (ast.If, ast.Assert, ast.IfExp)
LEAVES = (ast.Return, ast.Continue, ast.Break)  # an error ends the others, too
SETTING = (ast.Assign, ast.AnnAssign)
Place = tuple[ast.Call, Scope]


def prompts(analysis: Analysis) -> Iterator[Place]:
    """Yield the calls that ask the user, where every process makes them."""
    yield from (place for place in calls_named(analysis, PROMPTS) if _is_common(analysis, *place))


def asked_per_process(analysis: Analysis, outputs: list[Output], known: Collection[ast.AST]) -> Iterator[Place]:
    """Yield the calls that ask for a file or a folder that the script makes, in a test that decides something else.

    `known` are the statements, and all in them, of which something else takes care.
    """
    made = [(output.call, output.scope) for output in outputs if output.kind in MAKING]
    written = {output.call for output in outputs if output.kind in GUARDED_KINDS | {PRINT}}
    written |= {call for call, _ in calls_named(analysis, SHOWING)}  # which only rank 0 carries out
    questions = _questions(analysis)
    for asking, tests, scope in _asking(analysis, known):
        of_made = [part for part in asking if _is_of_made(analysis, part, scope, made)]
        is_left_to_main = all(_only_writes(_decided(test, scope), written) for test in tests)
        if of_made and is_left_to_main and not any(_leads_to(analysis, test, scope, questions) for test in tests):
            continue  # it is rank 0 that asks there, or rank 0 alone that does something else
        yield from ((part, scope) for part in of_made)


def asked_before(analysis: Analysis, known: Collection[ast.AST], answered: set[ast.AST]) -> Iterator[Place]:
    """Yield the calls that ask for files in tests that lead to `answered` ones, in which all processes meet."""
    for asking, tests, scope in _asking(analysis, known) if answered else ():
        if any(_leads_to(analysis, test, scope, answered) for test in tests):
            yield from ((part, scope) for part in asking if part not in answered)


def _asking(analysis: Analysis, known: Collection[ast.AST]) -> Iterator[tuple[list[ast.Call], list[Any], Scope]]:
    """Yield the calls by which every process asks for files, and the tests of their answers."""
    places: list[tuple[Any, Scope]] = reached_nodes(analysis).of(*TESTS, *SETTING)
    for node, scope in places:
        asked: Any = node.value if isinstance(node, SETTING) else node.test
        if node in known or asked is None:  # `is_new: bool` sets nothing
            continue
        asking = [part for part in walk(asked) if isinstance(part, ast.Call) and _asks(analysis, part, scope)]
        tests = _tests_of_answer(node, scope) if asking and isinstance(node, SETTING) else [node]
        if asking and tests:
            yield [part for part in asking if _is_common(analysis, part, scope)], tests, scope


def _tests_of_answer(setting: ast.Assign | ast.AnnAssign, scope: Scope) -> list[ast.If | ast.Assert | ast.IfExp]:
    """Return the tests of a function of what one of its variables is set to: `is_new = not os.path.exists(path)`."""
    names = stored_names([setting])
    tests = own_nodes(scope.node).of(*TESTS) if names else []
    return [test for test in tests if loaded_names([test.test]) & names]


def _decided(node: ast.If | ast.Assert | ast.IfExp, scope: Scope) -> list[ast.stmt]:
    """Return the statements that a test decides about, also as `os.mkdir(path) if is_new else None`."""
    outer = scope.source.parents[node]
    if isinstance(node, ast.IfExp) and isinstance(outer, ast.Expr):
        return [ast.Expr(node.body), ast.Expr(node.orelse)]
    return [*node.body, *node.orelse] if isinstance(node, ast.If) else [scope.source.statement(node)]


def _is_of_made(analysis: Analysis, call: ast.Call, scope: Scope, made: list[Place]) -> bool:
    """Return whether a call asks for what one of the other calls makes."""
    paths = [call.func.value] if not call.args and isinstance(call.func, ast.Attribute) else call.args[:1]
    paths += [held for path in paths for held in _gone_through(path, scope)]
    return any(_is_same(analysis, (path, scope), other) for path in paths for other in made)


def _gone_through(path: ast.expr, scope: Scope) -> Iterator[ast.expr]:
    """Yield `paths` for a path that is one of them: `p.exists() for p in paths.values()`."""
    for outer in expressions_around(path, scope):
        for part in getattr(outer, "generators", []):
            if ast.unparse(part.target) == ast.unparse(path):
                held = part.iter
                while isinstance(held, ast.Call) and isinstance(held.func, ast.Attribute):
                    held = held.func.value
                yield held


def _leads_to(analysis: Analysis, node: ast.AST, scope: Scope, calls: set[ast.AST]) -> bool:
    """Return whether a statement decides about one of the calls, in it or after it, in functions that it calls too."""
    parts = [node, *_after_leaving(node, scope)] if calls else []
    own = [part for outer in parts for part in walk(outer) if isinstance(part, ast.Call)]
    return any(inner in calls for call in own for inner, _ in calls_within(analysis, call, scope))


def _after_leaving(node: ast.AST, scope: Scope) -> Iterator[ast.stmt]:
    """Yield what is not run where an `if` leaves: `if exists(path): return`."""
    if not isinstance(node, ast.If) or not isinstance(node.body[-1], LEAVES):
        return
    for outer in (node, *scope.source.ancestors(node)):
        if outer is scope.node or (isinstance(outer, LOOPS) and isinstance(node.body[-1], (ast.Continue, ast.Break))):
            break
        if isinstance(outer, ast.stmt):
            block = block_of(scope.source, outer)
            yield from block[block.index(outer) + 1 :]


def _questions(analysis: Analysis) -> set[ast.AST]:
    """Return the calls that ask the user, in which all processes meet."""
    return {call for call, _ in calls_named(analysis, {*PROMPTS, ANSWER})}


def _asks(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    return is_asking(analysis, call, scope) or bool(analysis.called(call, scope) & LISTS)


def _is_common(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether every process comes to a call, and none of them has an answer of its own by right."""
    if runs_on_some(analysis, scope, call) or scope in run_elsewhere(analysis) or runs_in_turn(analysis, scope, call):
        return False
    around = list(scope.source.ancestors(call))
    if any(isinstance(outer, ast.ExceptHandler) for outer in around):
        return False  # the process whose attempt has failed is alone there
    return not any(isinstance(outer, ast.Call) and ANSWER in analysis.called(outer, scope) for outer in around)


def _only_writes(statements: list[ast.stmt], written: set[ast.Call]) -> bool:
    """Return whether statements do nothing but write and show, which is left to rank 0."""
    for statement in statements:
        if isinstance(statement, ast.Expr):
            if not (isinstance(statement.value, (ast.Constant, ast.Call)) and _is_written(statement.value, written)):
                return False
        elif isinstance(statement, (ast.If, ast.For, ast.With, ast.Try)):
            handlers = [part for handler in getattr(statement, "handlers", []) for part in handler.body]
            if not _only_writes([*statement.body, *getattr(statement, "orelse", []), *handlers], written):
                return False
        elif not isinstance(statement, ast.Pass):
            return False
    return True


def _is_written(value: ast.expr, written: set[ast.Call]) -> bool:
    return isinstance(value, ast.Constant) or value in written or last_name(value) in ("info", "warning", "debug")


def _is_same(analysis: Analysis, path: tuple[ast.expr, Scope], call: Place) -> bool:
    """Return whether a call is given a path, or a name that lies under it: makedirs(os.path.join(path, "logs"))."""
    node, scope = path
    text = ast.unparse(node)
    own = {builder_of(value) for value in analysis.evaluate(node, scope)} - {None}
    given: list[ast.expr] = [*call[0].args, *(keyword.value for keyword in call[0].keywords)]
    given += [call[0].func.value] if isinstance(call[0].func, ast.Attribute) else []
    for part in (part for expression in given for part in walk(expression)):
        if not isinstance(part, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript, ast.BinOp)):
            continue
        is_same_scope = call[1] is scope or isinstance(node, ast.Constant) or "." in text
        if is_same_scope and ast.unparse(part) == text:
            return True
        if own & ({builder_of(value) for value in analysis.evaluate(part, call[1])} - {None}):
            return True
    return False

"""Repairs of collective calls that some ranks do not reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import insert_after, replace

from ..script import Candidate, Script
from ..writing import guarded_lines, removed, unwrapped
from .figures import decided_by_all

COLLECTIVES = {
    *("barrier", "all_reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list", "reduce"),
    *("reduce_scatter", "gather", "gather_object", "sum_over_ranks", "reduce_loss", "reduce_dict", "reduce_total"),
    *("save_checkpoint", "monitored_barrier", "wait_for_everyone", "gather_for_metrics"),
}


def reached_by_all(script: Script) -> Iterator[Candidate]:
    """Take a collective call out of what is run by some ranks alone."""
    source = script.source
    for node in source.nodes.of(ast.IfExp):
        if by_rank(script, node.test) and list(script.calls(within=node.body)) and _waits(script, node.body):
            yield Candidate("let every rank run this", (replace(source, node, script.text(node.body)),))
    for call in script.calls(*COLLECTIVES):
        branch = next((o for o in source.ancestors(call) if isinstance(o, ast.If) and by_rank(script, o.test)), None)
        if branch is None or script.function_of(branch) is not script.function_of(call) or _is_test(branch, call):
            continue
        whole = _alone(script, call)
        rest = _without_rank_test(script, branch.test)
        if whole is branch and rest:
            yield Candidate("let every rank run this", (replace(source, branch.test, rest),))
        elif whole is branch or branch.body == [whole]:
            yield Candidate("let every rank run this", (unwrapped(script, branch),))
        else:
            lines = guarded_lines(script, whole, lambda test: by_rank(script, test))
            edits = (insert_after(source, branch, lines), removed(script, whole))
            yield Candidate("let every rank run this, after the branch", edits)
    yield from _after_loops(script)
    yield from decided_by_all(script)
    for call in script.calls():  # an evaluation through the wrapper on one rank
        branch = next((o for o in source.ancestors(call) if isinstance(o, ast.If) and by_rank(script, o.test)), None)
        if branch is not None and last_name(call.func).startswith(("evaluate", "validate", "test")):
            for given in call.args:
                if isinstance(given, ast.Name) and "model" in given.id:
                    text = f"{script.runtime}.unwrap_model({given.id})" if script.runtime else f"{given.id}.module"
                    yield Candidate("evaluate without the wrapper on one rank", (replace(source, given, text),))


def _waits(script: Script, node: ast.AST) -> bool:
    """Return whether an expression calls something of the project, or a collective."""
    names = {n.name for one in script.others for n in one.source.nodes.of(ast.FunctionDef)}
    return any(last_name(c.func) in COLLECTIVES | names for c in script.calls(within=node))


def _is_test(branch: ast.If, call: ast.Call) -> bool:
    return any(part is call for part in ast.walk(branch.test))


def by_rank(script: Script, test: ast.expr) -> bool:
    words = any(
        isinstance(p, ast.Call) and last_name(p.func) in ("is_main_process", "is_rank_zero") for p in ast.walk(test)
    )
    names = any(
        isinstance(p, ast.Attribute) and p.attr in ("is_main_process", "is_global_zero") for p in ast.walk(test)
    )
    return words or names or script.mentions_rank(test)


def _alone(script: Script, call: ast.Call) -> ast.stmt:
    """Return the largest `if` that holds nothing but the statement of a call, up to one by rank."""
    statement: ast.stmt = script.statement(call)
    while True:
        outer = script.source.parents.get(statement)
        if not isinstance(outer, ast.If) or outer.body != [statement] or outer.orelse:
            return statement
        statement = outer
        if by_rank(script, outer.test):
            return statement


def _without_rank_test(script: Script, test: ast.expr) -> str:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        left = [part for part in test.values if not by_rank(script, part)]
        return " and ".join(script.text(part) for part in left)
    return ""


def _after_loops(script: Script) -> Iterator[Candidate]:
    """Call a collective once after an evaluation loop, whose length differs between ranks."""
    for call in script.calls("all_reduce", "barrier"):
        loops = [loop for loop in script.loops_around(call) if loop not in script.epoch_loops]
        if not loops or any(loop in script.batch_loops for loop in loops):
            continue
        name = ast.unparse(call.args[0]) if call.args else ""
        whole = _alone(script, call)
        uses = [n for n in ast.walk(loops[-1]) if isinstance(n, ast.Name) and n.id == name and n.lineno > call.lineno]
        if not uses:
            from .figures import _outer

            edits = (
                insert_after(
                    script.source,
                    _outer(script, loops[-1]),
                    guarded_lines(script, whole, lambda test: by_rank(script, test)),
                ),
                removed(script, whole),
            )
            yield Candidate("call it once, after the loop", edits)

"""Repairs of figures that one rank computes from its own share, and of decisions by them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, insert_after, insert_before, replace

from ..script import Candidate, Script
from ..writing import guarded_lines, removed, without_own_brackets

COLLECTIVES = (
    "all_reduce",
    "reduce",
    "sum_over_ranks",
    "all_gather",
    "all_gather_object",
    "reduce_loss",
    "reduce_dict",
)


def sums_of_all_ranks(script: Script) -> Iterator[Candidate]:
    """Add up what an evaluation has counted over all ranks, before anything is divided or decided."""
    for loop in _evaluations(script):
        counted = _counted(script, loop)
        later = [call for call in script.calls("all_reduce") if _follows(script, call, loop)]
        moved = [call for call in later if call.args and ast.unparse(call.args[0]) in counted]
        for call in moved[:1]:
            yield from _moved(script, call, loop)
        reduced = {
            ast.unparse(a) for call in script.calls(*COLLECTIVES) if _follows(script, call, loop) for a in call.args
        }
        own = [name for name in counted if name not in reduced]
        for names in ([own] if own and own != list(counted) else []) + [list(counted)]:
            if names:
                yield Candidate(
                    f"add up {', '.join(names)} over all ranks",
                    script.with_imports(
                        [insert_after(script.source, _outer(script, loop), _summed(script, loop, names, counted))]
                    ),
                )


def _moved(script: Script, call: ast.Call, loop: ast.stmt) -> Iterator[Candidate]:
    statement = script.statement(call)
    edits = (
        insert_after(script.source, _outer(script, loop), guarded_lines(script, statement, lambda test: False)),
        removed(script, statement),
    )
    yield Candidate(f"add up {script.text(call.args[0])} over all ranks before it is used", edits)


def _evaluations(script: Script) -> list[ast.For]:
    """Return the loops that count something and do not train, the outermost of each."""
    found = []
    for loop in script.source.nodes.of(ast.For):
        trains = any(last_name(c.func) in {"backward", *script.training_functions} for c in script.calls(within=loop))
        if not trains and _counted(script, loop) and not any(outer in found for outer in script.loops_around(loop)):
            found.append(loop)
    return sorted(found, key=lambda loop: loop.lineno)


def _counted(script: Script, loop: ast.For) -> dict[str, ast.AugAssign]:
    """Return the names that a loop adds to."""
    names: dict[str, ast.AugAssign] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            made = [t for t, _ in script.assigned if ast.unparse(t) == node.target.id and t.lineno <= loop.lineno]
            if made:
                names.setdefault(node.target.id, node)
    return names


def _outer(script: Script, loop: ast.stmt) -> ast.stmt:
    """Return the `with` that a loop is alone in, or the loop."""
    outer = script.source.parents[loop]
    while isinstance(outer, ast.With) and outer.body[-1] is loop:
        loop, outer = outer, script.source.parents[outer]
    return loop


def _follows(script: Script, call: ast.Call, loop: ast.stmt) -> bool:
    is_after = call.lineno > (loop.end_lineno or loop.lineno)
    return is_after and script.function_of(call) is script.function_of(loop)


def _summed(script: Script, loop: ast.For, names: list[str], counted: dict[str, ast.AugAssign]) -> list[str]:
    if script.runtime:
        values = ", ".join(names)
        return [f"{values} = {script.runtime}.sum_over_ranks({values})"]
    dist, active = script.dist or "dist", script.is_distributed(loop)
    lines = [f"if {active}:"]
    tensors = [name for name in names if _is_tensor(script, name)]
    lines += [f"    {dist}.all_reduce({name})" for name in tensors]
    numbers = [name for name in names if name not in tensors]
    if numbers:
        values = ", ".join(numbers)
        lines += [
            f"    sums = [None] * {script.world_size(loop)}",
            f"    {dist}.all_gather_object(sums, [{values}])",
            f"    {values if len(numbers) > 1 else values + ','} = map(sum, zip(*sums))",
        ]
    return lines


def _is_tensor(script: Script, name: str) -> bool:
    values = [v for t, v in script.assigned if ast.unparse(t) == name]
    functions = ("zeros", "tensor", "zeros_like", "ones", "empty", "full")
    return any(isinstance(v, ast.Call) and last_name(v.func) in functions for v in values)


def decided_by_all(script: Script) -> Iterator[Candidate]:
    """Decide by the mean over all ranks where a rank decides by its own loss whether it steps, stops or saves."""
    tests: list[ast.If | ast.While] = [*script.source.nodes.of(ast.If), *script.source.nodes.of(ast.While)]
    for node in tests:
        if not _changes_course(script, node):
            continue
        for call in script.calls("item", within=node.test):
            if isinstance(call.func, ast.Attribute):
                yield from _with_mean(script, node, call, call.func.value)
    for call in script.calls("step"):
        if call.args and "sched" in ast.unparse(call.func):
            value = call.args[0]
            for target, made in script.assigned:
                items = [c for c in script.calls("item", within=made) if isinstance(c.func, ast.Attribute)]
                if ast.unparse(target) == ast.unparse(value) and items and target.lineno < call.lineno:
                    yield from _with_mean(script, script.statement(target), items[0], items[0].func.value)  # type: ignore[attr-defined]


def _changes_course(script: Script, node: ast.If | ast.While) -> bool:
    parts = [part for statement in node.body for part in ast.walk(statement)]
    calls = [last_name(part.func) for part in parts if isinstance(part, ast.Call)]
    return isinstance(node, ast.While) or "step" in calls or any(isinstance(p, (ast.Break, ast.Return)) for p in parts)


def _with_mean(script: Script, statement: ast.stmt, call: ast.Call, value: ast.expr) -> Iterator[Candidate]:
    text = script.text(value)
    if script.runtime:
        edit = replace(script.source, value, f"{script.runtime}.reduce_loss({text})")
        yield Candidate("decide by the mean over all ranks", (edit,))
        return
    name = f"mean_{text}" if isinstance(value, ast.Name) else "mean_value"
    dist = script.dist or "dist"
    lines = [
        f"{name} = {text}.detach().clone()" if isinstance(value, ast.Name) else f"{name} = ({text}).detach().clone()",
        f"if {script.is_distributed(statement)}:",
        f"    {dist}.all_reduce({name})",
        f"    {name} /= {script.world_size(statement)}",
    ]
    start, end = without_own_brackets(script, value)
    edits = [insert_before(script.source, statement, lines), Edit(script.source, start, end, name)]
    yield Candidate("decide by the mean over all ranks", script.with_imports(edits))


def counted_axis(script: Script) -> Iterator[Candidate]:
    """Count the samples of all ranks for the axis of curves."""
    for node in script.source.nodes.of(ast.AugAssign):
        lengths = isinstance(node.value, ast.Call) and last_name(node.value.func) in ("len", "size")
        if isinstance(node.op, ast.Add) and lengths and any(script.loops_around(node)) and script.runtime:
            text = f"{script.runtime}.reduce_total({script.text(node.value)})"
            yield Candidate("count the samples of all ranks", (replace(script.source, node.value, text),))
        elif isinstance(node.op, ast.Add) and lengths and any(script.loops_around(node)):
            text = f"{script.text(node.value)} * {script.world_size(node)}"
            yield Candidate(
                "count the samples of all ranks", script.with_imports([replace(script.source, node.value, text)])
            )

"""Repairs of losses, gradients, rates and schedules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, insert_after, insert_before, replace
from retrofit.training.placement import import_edit

from ..script import Candidate, Script
from ..writing import delete_or_cut, removed, unwrapped
from .model import WRAPPERS

REDUCES = ("all_reduce", "reduce")


def without_factor(script: Script) -> Iterator[Candidate]:
    """Leave out a factor of world_size in a loss."""
    for node in _factors(script):
        outer = script.statement(node)
        if any(loop for loop in script.loops_around(outer)):
            other = node.right if script.is_world_size(node.left) or _is_world(script, node.left) else node.left
            yield Candidate(
                "leave the loss as it is: gradients are averaged", (_without_brackets(script, node, other),)
            )


def _factors(script: Script) -> list[ast.BinOp]:
    found = []
    for node in script.source.nodes.of(ast.BinOp):
        if isinstance(node.op, ast.Mult) and (_is_world(script, node.left) or _is_world(script, node.right)):
            found.append(node)
    return found


def _is_world(script: Script, node: ast.AST) -> bool:
    names = {ast.unparse(t) for t, v in script.assigned if script.is_world_size(v)} | {"world_size", "args.world_size"}
    return ast.unparse(node) in names or (isinstance(node, ast.Call) and last_name(node.func) == "get_world_size")


def _without_brackets(script: Script, node: ast.expr, other: ast.expr) -> Edit:
    source = script.source
    start, end = source.span(node)
    if (
        source.text[start - 1 : start] == "("
        and source.text[end : end + 1] == ")"
        and isinstance(other, (ast.Name, ast.Attribute, ast.Call))
    ):
        before = source.text[start - 2 : start - 1]
        if not (before.isalnum() or before in "_)]"):
            start, end = start - 1, end + 1
    return Edit(source, start, end, source.segment(other))


def averaged_once(script: Script) -> Iterator[Candidate]:
    """Average gradients exactly once: not after DDP, by world_size after a sum, in place and not in a copy."""
    has_wrapper = any(True for _ in script.calls(*WRAPPERS, "distribute_model"))
    for call in script.calls("all_reduce"):
        if not call.args:
            continue
        given, statement = call.args[0], script.statement(call)
        copies = [
            (t, v)
            for t, v in script.assigned
            if isinstance(given, ast.Name)
            and ast.unparse(t) == given.id
            and t.lineno < call.lineno
            and ".grad" in ast.unparse(v)
            and script.function_of(t) is script.function_of(call)
        ]
        if isinstance(given, ast.Attribute) and given.attr == "grad":
            if has_wrapper:
                yield Candidate("average gradients once: DDP does it", (_loop_removed(script, statement),))
            if "AVG" not in script.text(call):
                text = f"{script.text(given)} /= {script.world_size(call)}"
                yield Candidate("divide the sum of the gradients", (insert_after(script.source, statement, [text]),))
        for target, value in copies[-1:]:
            origin = next(n for n in ast.walk(value) if isinstance(n, ast.Attribute) and n.attr == "grad")
            name = script.text(target)
            block = script.block(statement)
            line = f"{script.text(origin)}.copy_({name})"
            yield Candidate("average the gradient itself", (replace(script.source, value, script.text(origin)),))
            yield Candidate("write the average back", (insert_after(script.source, block[-1], [line]),))


def _loop_removed(script: Script, statement: ast.stmt) -> Edit:
    loops = script.loops_around(statement)
    if loops and len(loops[0].body) <= 2 and "grad" in script.text(loops[0]):
        return removed(script, loops[0])
    return removed(script, statement)


def gathered_with_gradient(script: Script) -> Iterator[Candidate]:
    """Gather the rows of all ranks with their gradient."""
    for call in script.calls("all_gather"):
        if len(call.args) < 2 or "nn.functional" in ast.unparse(call.func):
            continue
        function = script.function_of(call)
        name, rows = ast.unparse(call.args[0]), _undetached(script, call.args[1])
        cats = [c for c in script.calls("cat", "concat", within=function) if c.args and ast.unparse(c.args[0]) == name]
        is_autograd = any(
            isinstance(o, ast.ClassDef) and "Function" in "".join(map(ast.unparse, o.bases))
            for o in script.source.ancestors(call)
        )
        if not cats or is_autograd:
            continue
        edits: list[Edit] = [
            replace(script.source, cat.args[0], f"torch.distributed.nn.functional.all_gather({rows})") for cat in cats
        ]
        for target, _ in script.assigned:
            if ast.unparse(target) == name and script.function_of(target) is function:
                edits.append(delete_or_cut(script, script.statement(target)))
        edits.append(removed(script, script.statement(call)))
        for node in script.source.nodes.of(ast.Assign):
            own = node.targets[0]
            if (
                isinstance(own, ast.Subscript)
                and ast.unparse(own.value) == name
                and script.function_of(own) is function
            ):
                edits.append(removed(script, node))
        edits.append(import_edit(script.source, "import torch.distributed.nn"))
        yield Candidate("gather with gradients: torch.distributed.nn.functional.all_gather", tuple(edits))


def _undetached(script: Script, node: ast.expr) -> str:
    while isinstance(node, ast.Call) and last_name(node.func) in ("detach", "contiguous"):
        node = node.func.value  # type: ignore[attr-defined]
    return f"{script.text(node)}.contiguous()"


def selected_of_all(script: Script) -> Iterator[Candidate]:
    """Choose the hardest samples among those of all ranks."""
    if script.runtime:
        return
    for call in script.calls("topk", "sort", "kthvalue"):
        if not isinstance(call.func, ast.Attribute) or not any(script.loops_around(call)):
            continue
        values, statement = call.func.value, script.statement(call)
        world, active = script.world_size(call), script.is_distributed(call)
        gathered = "torch.cat(torch.distributed.nn.functional.all_gather({}))"
        name = "losses"
        lines = [
            f"{name} = {script.text(values)}",
            f"if {active}:",
            f"    {name} = {gathered.format(name)}",
        ]
        edits: list[Edit] = [insert_before(script.source, statement, lines), replace(script.source, values, name)]
        for inner in [c for a in call.args for c in script.calls("len", within=a)]:
            edits.append(replace(script.source, inner, f"len({name})"))
        edits.append(import_edit(script.source, "import torch.distributed.nn"))
        assert world
        yield Candidate("choose among the samples of all ranks", tuple(edits))


def summed_statistics(script: Script) -> Iterator[Candidate]:
    """Sum over ranks what a module adds to its buffers."""
    for node in script.source.nodes.of(ast.ClassDef):
        buffers = {
            c.args[0].value
            for c in script.calls("register_buffer", within=node)
            if c.args and isinstance(c.args[0], ast.Constant)
        }
        for function in (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name != "__init__"):
            names: dict[str, ast.stmt] = {}
            for call in script.calls("add_", "lerp_", "copy_", "mul_", within=function):
                of_buffer = any(
                    isinstance(p, ast.Attribute) and p.attr in buffers and ast.unparse(p.value) == "self"
                    for p in ast.walk(call.func)
                )
                for given in call.args if of_buffer else ():
                    made = [t for t, _ in script.assigned if isinstance(given, ast.Name) and ast.unparse(t) == given.id]
                    own = [t for t in made if script.function_of(t) is function]
                    if own:
                        names[ast.unparse(given)] = script.statement(own[-1])
            if not names:
                continue
            dist = script.dist or "torch.distributed"
            active = f"{dist}.is_initialized()"
            lines = [f"if {active}:", *(f"    {dist}.all_reduce({name})" for name in names)]
            last = max(names.values(), key=lambda statement: statement.lineno)
            yield Candidate("sum the statistics over all ranks", (insert_after(script.source, last, lines),))


def rate(script: Script) -> Iterator[Candidate]:
    """Scale the learning rate once."""
    rd = script.runtime
    for node in _factors(script):
        if any(script.loops_around(node)):
            continue
        other = node.right if _is_world(script, node.left) else node.left
        yield Candidate("scale the learning rate once", (replace(script.source, node, script.text(other)),))
        if rd and "scaled_lr" not in script.text(other):
            edit = replace(script.source, node, f"{rd}.scaled_lr({script.text(other)})")
            yield Candidate("scale the learning rate by the batch of all ranks", (edit,))


def schedule(script: Script) -> Iterator[Candidate]:
    """Count the steps of the sharded loader, and step once for each."""
    for loop in script.source.nodes.of(ast.For):
        if any(_is_world(script, part) for part in ast.walk(loop.iter)) and list(script.calls("step", within=loop)):
            yield Candidate("step the schedule once", (unwrapped(script, loop),))
    for node in script.source.nodes.of(ast.BinOp):
        length = node.left
        is_length = isinstance(length, ast.Call) and last_name(length.func) == "len" and length.args
        if isinstance(node.op, (ast.FloorDiv, ast.Div)) and is_length:
            given = length.args[0]  # type: ignore[attr-defined]
            if isinstance(given, ast.Attribute) and given.attr == "dataset":
                text = f"len({script.text(given.value)})"
                yield Candidate("count the batches of the sharded loader", (replace(script.source, node, text),))
    for node in _factors(script):
        if "step" in script.text(script.statement(node)) or "len(" in script.text(node):
            other = node.right if _is_world(script, node.left) else node.left
            yield Candidate("count the steps of one rank", (replace(script.source, node, script.text(other)),))

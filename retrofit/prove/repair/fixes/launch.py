"""Repairs of how a script is launched."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, insert_after, replace

from ..script import Candidate, Script, keyword_of
from ..writing import under
from .collectives import by_rank

SPELLINGS = {"--local_rank": "--local-rank", "--local-rank": "--local_rank"}
ADDRESS = ("MASTER_PORT", "MASTER_ADDR")


def local_rank(script: Script) -> Iterator[Candidate]:
    """Take both spellings of the launcher's flag."""
    for call in script.calls("add_argument"):
        given = [a for a in call.args if isinstance(a, ast.Constant) and str(a.value) in SPELLINGS]
        if len(given) == 1:
            text, known = script.text(given[0]), str(given[0].value)
            other = text.replace(known, SPELLINGS[known])
            yield Candidate(
                "take both spellings of the launcher's flag", (replace(script.source, given[0], f"{text}, {other}"),)
            )
    if any(True for _ in script.calls("add_argument")):
        for call in script.calls("ArgumentParser"):
            target = next((t for t, v in script.assigned if v is call), None)
            if target is not None:
                line = f'{script.text(target)}.add_argument("--local_rank", "--local-rank", type=int, default=-1)'
                edit = insert_after(script.source, script.statement(call), [line])
                yield Candidate("take the launcher's flag", (edit,))


def port(script: Script) -> Iterator[Candidate]:
    """Leave the address of the launcher as it is."""
    edits: list[Edit] = []
    for node in script.source.nodes.of(ast.Assign):
        target = node.targets[0]
        if (
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value in ADDRESS
        ):
            text = f"{script.text(target.value)}.setdefault({script.text(target.slice)}, {script.text(node.value)})"
            edits.append(replace(script.source, node, text))
    if edits:
        yield Candidate("take the launcher's address where there is one", tuple(edits))
    for call in script.calls("init_process_group"):
        method = keyword_of(call, "init_method")
        if method is not None and "tcp://" in script.text(method.value):
            yield Candidate("take the launcher's address", (replace(script.source, method.value, '"env://"'),))


def on_main_alone(script: Script) -> Iterator[Candidate]:
    """Use on rank 0 alone what rank 0 alone has."""
    for node in script.source.nodes.of(ast.If):
        if not by_rank(script, node.test):
            continue
        names = {ast.unparse(t) for t, _ in script.assigned if script.statement(t) in node.body}
        edits: list[Edit] = []
        for call in script.calls():
            statement = script.statement(call)
            is_use = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in names
            if is_use and statement.lineno > node.lineno and isinstance(statement, ast.Expr):
                header = (
                    f"if {script.runtime}.is_main_process():" if script.runtime else f"if {script.rank(call)} == 0:"
                )
                edits += under(script, [statement], header)
        if edits:
            yield Candidate(f"use {', '.join(sorted(names))} on rank 0 alone", script.with_imports(edits))

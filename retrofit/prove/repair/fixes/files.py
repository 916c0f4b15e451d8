"""Repairs of what every rank writes, creates, logs and names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import EditConflict, has_own_lines, insert_after, replace

from ..script import FUNCTIONS, Candidate, Script, keyword_of
from ..writing import under
from .collectives import COLLECTIVES, by_rank

WRITES = {"save", "dump", "to_csv", "savefig", "write_text", "write_bytes", "writerow", "savez", "imsave", "save_image"}
CREATES = {"mkdir", "makedirs", "copyfile", "copytree", "rmtree", "symlink", "rename", "unlink"}
PREPARES = ("prepare", "download", "preprocess", "cache", "extract")
CLOCK = ("strftime", "now", "time", "isoformat", "uuid4", "getpid", "ctime")


def guarded(script: Script) -> Iterator[Candidate]:
    """Let rank 0 alone write a file, or make a folder."""
    writes = [call for call in script.calls(*WRITES, *CREATES) if _is_unguarded(script, call)]
    opens = [call for call in script.calls("open") if _writes(call) and _is_unguarded(script, call)]
    statements = list(dict.fromkeys(_whole(script, call) for call in [*writes, *opens]))
    groups = [[one] for one in statements]
    together = [one for one in statements if one in script.block(statements[0])] if statements else []
    if len(together) > 1 and _are_neighbours(script, together):
        groups.insert(0, together)
    elif len(statements) > 1:
        candidate = _guard_each(script, statements)
        if candidate:
            yield candidate
    for group in groups:
        candidate = _guard_each(script, group) if len(group) == 1 else _guard_together(script, group)
        if candidate:
            yield candidate


def _guard_together(script: Script, group: list[ast.stmt]) -> Candidate | None:
    try:
        return Candidate("let rank 0 alone write it", tuple(under(script, group, _header(script, group[0]))))
    except EditConflict:
        return None


def _guard_each(script: Script, statements: list[ast.stmt]) -> Candidate | None:
    if not all(has_own_lines(script.source, one) for one in statements):
        return None
    edits = [edit for one in statements for edit in under(script, [one], _header(script, one))]
    return Candidate("let rank 0 alone write it", script.with_imports(edits))


def _header(script: Script, place: ast.AST) -> str:
    if script.runtime:
        return f"if {script.runtime}.is_main_process():"
    return f"if {script.rank(place)} == 0:"


def _are_neighbours(script: Script, statements: list[ast.stmt]) -> bool:
    block = script.block(statements[0])
    places = sorted(block.index(one) for one in statements)
    return places == list(range(places[0], places[0] + len(places)))


def _is_unguarded(script: Script, call: ast.Call) -> bool:
    inside = any(isinstance(o, ast.If) and by_rank(script, o.test) for o in script.source.ancestors(call))
    statement = _whole(script, call)
    waits = any(last_name(c.func) in COLLECTIVES for c in script.calls(within=statement))
    defines = isinstance(statement, (ast.Assign, ast.Return, ast.FunctionDef, ast.ClassDef))
    return not inside and not waits and not defines


def _writes(call: ast.Call) -> bool:
    mode = call.args[1] if len(call.args) > 1 else getattr(keyword_of(call, "mode"), "value", None)
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax+") != set()


def _whole(script: Script, call: ast.Call) -> ast.stmt:
    """Return the statement of a call, or the `with` that opens the file."""
    for outer in script.source.ancestors(call):
        if isinstance(outer, ast.With) and any(call in ast.walk(item.context_expr) for item in outer.items):
            return outer
        if isinstance(outer, FUNCTIONS):
            break
    return script.statement(call)


def prepared_first(script: Script) -> Iterator[Candidate]:
    """Let rank 0 prepare data while the others wait."""
    for call in script.calls():
        name = last_name(call.func)
        statement = script.statement(call)
        guards = [
            o for o in script.source.ancestors(call) if isinstance(o, ast.With) and "first" in ast.unparse(o.items[0])
        ]
        if not name.startswith(PREPARES) or guards or isinstance(statement, FUNCTIONS):
            continue
        if script.runtime:
            header = f"with {script.runtime}.output.main_process_first():"
            try:
                yield Candidate("let rank 0 prepare first", tuple(under(script, [statement], header)))
            except EditConflict:
                continue
        elif isinstance(statement, (ast.Expr, ast.Assign)):
            text = script.text(statement)
            lines = [
                f"if {script.rank(call)} == 0:",
                f"    {text}",
                f"if {script.is_distributed(call)}:",
                f"    {script.dist or 'dist'}.barrier()",
                f"if {script.rank(call)} != 0:",
                f"    {text}",
            ]
            from retrofit.analysis.edits import indentation

            indent = indentation(script.source, statement)
            edit = replace(script.source, statement, f"{script.source.newline}{indent}".join(lines))
            yield Candidate("let rank 0 prepare first", script.with_imports([edit]))


def made_after_group(script: Script) -> Iterator[Candidate]:
    yield from prepared_first(script)
    yield from guarded(script)
    for call in script.calls("mkdir"):
        if last_name(call.func) == "mkdir" and ast.unparse(call.func) == "os.mkdir":
            text = f"os.makedirs({', '.join(script.text(a) for a in call.args)}, exist_ok=True)"
            yield Candidate("take a folder that is there already", (replace(script.source, call, text),))


def one_name(script: Script) -> Iterator[Candidate]:
    """Give all ranks the name by rank 0's clock."""
    for target, value in script.assigned:
        clocks = [c for c in script.calls(*CLOCK, within=value)]
        if not clocks:
            continue
        name, statement = script.text(target), script.statement(target)
        if script.runtime:
            text = f"{script.runtime}.collectives.broadcast_object({script.text(value)})"
            yield Candidate(f"give all ranks rank 0's {name}", (replace(script.source, value, text),))
            continue
        dist = script.dist or "dist"
        lines = [
            f"if {script.is_distributed(statement)}:",
            f"    names = [{name}]",
            f"    {dist}.broadcast_object_list(names)",
            f"    {name} = names[0]",
        ]
        edit = insert_after(script.source, statement, lines)
        yield Candidate(f"give all ranks rank 0's {name}", script.with_imports([edit]))


def one_writer(script: Script) -> Iterator[Candidate]:
    """Log on rank 0 alone."""
    for call in script.calls("SummaryWriter"):
        if script.runtime and "on_main_process" not in script.text(script.statement(call)):
            from retrofit.analysis.edits import call_through

            edits = call_through(script.source, call, f"{script.runtime}.output.on_main_process")
            yield Candidate("write curves on rank 0 alone", tuple(edits))
        elif not script.runtime:
            target = next((t for t, v in script.assigned if v is call), None)
            if target is None:
                continue
            name = ast.unparse(target)
            rank = script.rank(call)
            edits = [replace(script.source, call, f"{script.text(call)} if {rank} == 0 else None")]
            uses = [
                script.statement(c)
                for c in script.calls()
                if isinstance(c.func, ast.Attribute)
                and ast.unparse(c.func.value) == name
                and isinstance(script.statement(c), ast.Expr)
                and not _is_guarded(script, c)
            ]
            for use in dict.fromkeys(uses):
                if has_own_lines(script.source, use):
                    edits += under(script, [use], f"if {name} is not None:")
            yield Candidate("write curves on rank 0 alone", script.with_imports(edits))


def _is_guarded(script: Script, call: ast.Call) -> bool:
    return any(isinstance(o, ast.If) and by_rank(script, o.test) for o in script.source.ancestors(call))

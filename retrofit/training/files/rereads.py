"""Files that rank 0 writes and every process reads right after, with nothing in between that makes them wait."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from retrofit.analysis.calls import argument_for, body_of
from retrofit.analysis.files.runtime_names import RUNTIME
from retrofit.analysis.files.standard_library import standard_modules
from retrofit.analysis.flow.calls.graph import nodes_in
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.torch_api.distributed import BARRIERS
from retrofit.training.torch_api.files import (
    COMMANDS,
    ENTERS,
    EXISTS,
    EXISTS_METHODS,
    FILE_CHANGERS,
    HARMLESS_COMMANDS,
    LISTS_METHODS,
    PATH_POSITIONS,
    READERS,
    READING_METHODS,
    REMOVERS,
)
from retrofit.training.torch_api.output import FILE_LOGGERS
from retrofit.training.torch_api.runtime import COMBINING, MAIN_FIRST, WITH_COLLECTIVES

from .outputs import FOLDER, OPEN, SAVE, STORE, WRITE, Output, opens_for_writing, opens_own_path
from .path_names import Names, names_of_read, names_of_variables, path_names

ANY = "*"  # what a command writes, which only the command knows
FOLDERS_MADE = {"os.makedirs", "os.mkdir"}
MEETING = BARRIERS | COMBINING | WITH_COLLECTIVES
OPENING = READERS | ENTERS
DEFINITIONS = (*FUNCTIONS, ast.ClassDef)
LOGS = FILE_LOGGERS | {"logging.basicConfig"}
NOTHING: Names = frozenset()
# Packages of which READERS has the functions that read, and files that are open.
NEVER_READ = {"torch", "numpy", "open", RUNTIME.partition(".")[0]}


@dataclass
class Reread:
    """A statement before which all processes have to wait for what rank 0 writes; `call` reads it, or removes it.

    `is_end`: it ends the process with a status, and with it the launcher ends rank 0.
    """

    statement: ast.stmt
    scope: Scope
    call: ast.Call
    is_end: bool = False


@dataclass
class _Summary:
    """Names of what a function reads before the processes meet in it, and of what it has written at its end."""

    read: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    meets: bool = False


class Rereads:
    """Follows a script through its functions: `run` returns where the processes have to wait.

    `training`: the loops over batches, in whose steps they meet; `met`: statements that rank 0 is done with before
    the others begin; `alone`: whether some of them leave a node out.
    """

    def __init__(
        self,
        analysis: Analysis,
        outputs: Collection[Output],
        training: Collection[ast.AST],
        met: Collection[ast.stmt],
        alone: Callable[[Scope, ast.AST], bool],
    ) -> None:
        self.analysis, self._training, self._met, self._alone = analysis, set(training), met, alone
        self._shown = {output.call for output in outputs}
        kept = [output for output in outputs if output.name not in LOGS]  # a log is read when all is over
        self._outputs = {output.call: output for output in kept if output.kind in (OPEN, STORE, SAVE, WRITE, FOLDER)}
        self._summaries: dict[Scope, _Summary] = {}
        self._current = _Summary()
        self._reading: set[str] = set()  # what the processes have been waiting for, and may not have read yet
        self.found: dict[ast.stmt, Reread] = {}

    def run(self, module: Scope, functions: Iterable[Scope]) -> list[Reread]:
        """Follow the script from its module, and then `functions` that are called by names which are not known."""
        for scope in (module, *functions):
            self._function(scope)
        return list(self.found.values())

    def _function(self, scope: Scope) -> _Summary:
        if scope not in self._summaries:
            outer, self._current = self._current, _Summary()
            self._summaries[scope] = self._current
            if any(self._is_first(decorator, scope) for decorator in getattr(scope.node, "decorator_list", [])):
                self._current.meets = True
                self._current = outer
                return self._summaries[scope]
            body: Any = body_of(scope.node) if isinstance(scope.node, FUNCTIONS) else scope.node.body  # type: ignore[union-attr]
            self._current.written |= self._block(body, scope, set())
            self._current = outer
        return self._summaries[scope]

    def _is_in_turn(self, statement: ast.stmt, scope: Scope) -> bool:
        """Return whether rank 0 runs a block first: `with main_process_first():`."""
        items = statement.items if isinstance(statement, ast.With) else []
        return any(self._is_first(item.context_expr, scope) for item in items)

    def _is_first(self, node: ast.expr, scope: Scope) -> bool:
        return isinstance(node, ast.Call) and MAIN_FIRST in self.analysis.called(node, scope)

    def _block(self, statements: list[ast.stmt], scope: Scope, written: set[str]) -> set[str]:
        before = set(written)
        for statement in statements:
            is_new = written > before or bool(
                written and self._training.intersection(scope.source.ancestors(statement))
            )
            if is_new and self._fails(statement, scope) and not self._alone(scope, statement):
                assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                self.found.setdefault(statement, Reread(statement, scope, statement.value, is_end=True))
                written = set()
            written = self._statement(statement, scope, written)
        return written

    def _fails(self, statement: ast.stmt, scope: Scope) -> bool:
        """Return whether a process ends with a status, at which the launcher ends the others, where no error is."""
        call = statement.value if isinstance(statement, ast.Expr) else None
        if not (isinstance(call, ast.Call) and call.args and self.analysis.called(call, scope) & EXITS):
            return False
        is_handling = any(isinstance(outer, ast.ExceptHandler) for outer in scope.source.ancestors(statement))
        return not is_handling and getattr(call.args[0], "value", 1) not in (0, None)

    def _statement(self, statement: ast.stmt, scope: Scope, written: set[str]) -> set[str]:
        if isinstance(statement, DEFINITIONS):
            return written
        if statement in self._met or self._is_in_turn(statement, scope):
            self._current.meets = True
            return set()
        written = self._expressions(statement, scope, written)
        has_met, reading = self._current.meets, set(self._reading)
        if isinstance(statement, ast.stmt):  # not what a lambda gives
            written = self._blocks(statement, scope, written)
        if not isinstance(statement, (ast.With, ast.AsyncWith)):
            self._current.meets = has_met  # in a branch, or in a loop that may run no step
            self._reading |= set() if statement in self._training else reading
        return written

    def _blocks(self, statement: ast.stmt, scope: Scope, written: set[str]) -> set[str]:
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            once = self._block(statement.body, scope, set(written))
            again = self._block(statement.body, scope, set(once))
            if statement in self._training:
                self._reading = set()
                written = set()  # the steps are what they meet in; what is written in a step may come after that
            return self._block(statement.orelse, scope, written | once | again)
        if isinstance(statement, ast.If):
            return self._block(statement.body, scope, set(written)) | self._block(statement.orelse, scope, set(written))
        if isinstance(statement, ast.Try):
            written = self._block(statement.body, scope, written)
            for handler in statement.handlers:
                written |= self._block(handler.body, scope, set(written))
            return self._block([*statement.orelse, *statement.finalbody], scope, written)
        return self._block(getattr(statement, "body", []), scope, written)

    def _expressions(self, statement: ast.stmt, scope: Scope, written: set[str]) -> set[str]:
        """Return what is written and not waited for after the calls of a statement, without those in its blocks."""
        blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody", "handlers")]
        inner = {part for block in blocks if isinstance(block, list) for part in block}  # no parts of `a if b else c`
        own = [node for part in children(statement) if part not in inner for node in nodes_in(part)]
        calls = [node for node in own if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.end_lineno, call.end_col_offset)):  # as they are run
            written = self._call(call, statement, scope, written)
        return written

    def _call(self, call: ast.Call, statement: ast.stmt, scope: Scope, written: set[str]) -> set[str]:
        names = self.analysis.called(call, scope)
        if names & MEETING:
            self._current.meets = True
            self._reading = set()
            return set()
        output = self._outputs.get(call)
        if output is not None:
            own = self._written_by(output)
            if self._replaces(output) and _are_same(own, self._reading) and not self._alone(scope, call):
                self._wait(statement, scope, call)
                self._reading = set()
            return written | own
        is_reader = bool(names & OPENING) or (
            isinstance(call.func, ast.Attribute) and call.func.attr in READING_METHODS
        )
        given = self._given_to_library(call, scope, names)
        is_reader = is_reader or (not written <= {ANY} and _are_same(given, written))
        is_reader = is_reader and not opens_for_writing(self.analysis, call, scope)  # open(rd.path_on_main(path), "a")
        functions = self.analysis.functions_called(call, scope)
        reading = set(self._reading)
        inside = [self._function(function.scope) for function in functions]
        replaced = [summary for summary in inside if _are_same(summary.written, reading) and not summary.meets]
        if replaced and not self._alone(scope, call):
            self._wait(statement, scope, call)
            self._reading = set()
        read = self._paths_read(call, scope) | given if is_reader and not functions else set()
        for summary in inside:
            read |= summary.read
        if given and not self._current.meets and not self._alone(scope, call):
            self._current.read |= given  # a caller may have written it
        is_met = is_reader and not functions and ANY in written
        if read and not self._alone(scope, call) and (is_met or _are_same(read, written)):
            self._wait(statement, scope, call)
            self._reading = read
            written = set()
        elif read and not self._current.meets and not self._alone(scope, call):
            self._current.read |= read
        if any(summary.meets for summary in inside):
            self._current.meets = True
            written = set()
        return written.union(*(summary.written - {ANY} for summary in inside))

    def _replaces(self, output: Output) -> bool:
        """Return whether what was in a file is gone then, which other processes may still read."""
        if output.name in REMOVERS or output.kind == SAVE:
            return True
        mode = argument_for(output.call, ["file", "mode"], "mode") if output.kind == OPEN else None
        modes = self.analysis.evaluate(mode, output.scope) if mode is not None else ()
        return any(str(getattr(getattr(each, "node", None), "value", "")).startswith("w") for each in modes)

    def _wait(self, statement: ast.stmt, scope: Scope, call: ast.Call) -> None:
        place = self._before_tests(statement, scope)
        self.found.setdefault(place, Reread(place, scope, call))

    def _given_to_library(self, call: ast.Call, scope: Scope, names: set[str]) -> Names:
        """Return the files that a function of a library is given, which may read them: `coco.loadRes("found.json")`."""
        packages = {name.partition(".")[0] for name in names if "." in name}
        if not packages or packages & NEVER_READ or packages & standard_modules() or call in self._shown:
            return NOTHING
        paths = [*call.args, *(keyword.value for keyword in call.keywords)]
        files = (path_names(self.analysis, path, scope)[0] for path in call.args[:1])
        return NOTHING.union(*files, *(names_of_variables(self.analysis, path, scope) for path in paths))

    def _before_tests(self, statement: ast.stmt, scope: Scope) -> ast.stmt:
        """Return the outermost `if os.path.exists(path)` around a statement, which ranks may answer apart."""
        for outer in scope.source.ancestors(statement):
            if outer is scope.node:
                break
            parts = walk(outer.test) if isinstance(outer, (ast.If, ast.While)) else ()
            if any(isinstance(part, ast.Call) and self._asks_for_file(part, scope) for part in parts):
                statement = outer  # type: ignore[assignment]
        return statement

    def _asks_for_file(self, call: ast.Call, scope: Scope) -> bool:
        is_method = isinstance(call.func, ast.Attribute) and call.func.attr in EXISTS_METHODS
        return is_method or bool(self.analysis.called(call, scope) & EXISTS)

    def _written_by(self, output: Output) -> Names:
        call, scope = output.call, output.scope
        if output.name in FOLDERS_MADE or output.name == "mkdir":
            made = call.args[0] if output.name in FOLDERS_MADE and call.args else getattr(call.func, "value", None)
            return _as_folders(self._written_to(made, scope)) if made is not None else NOTHING
        if output.name in COMMANDS:
            words = [part.value for part in walk(call) if isinstance(part, ast.Constant)]
            texts = [word for word in words if isinstance(word, str) and word.strip()]
            is_harmless = bool(texts) and texts[0].split()[0] in HARMLESS_COMMANDS
            return NOTHING if is_harmless else frozenset({ANY}).union(*(self._written_to(a, scope) for a in call.args))
        if output.name in FILE_CHANGERS:
            given = [*call.args, *(keyword.value for keyword in call.keywords)]
            return NOTHING.union(*(self._written_to(path, scope) for path in given))
        if isinstance(call.func, ast.Attribute) and (not call.args or opens_own_path(call)):
            return self._written_to(call.func.value, scope)
        position = PATH_POSITIONS.get(output.name, 0)
        return NOTHING.union(*(self._written_to(path, scope) for path in call.args[position : position + 1]))

    def _written_to(self, path: ast.expr, scope: Scope) -> Names:
        return NOTHING.union(*path_names(self.analysis, path, scope), names_of_variables(self.analysis, path, scope))

    def _paths_read(self, call: ast.Call, scope: Scope) -> set[str]:
        given = call.args[:1] or [keyword.value for keyword in call.keywords[:1]]
        if isinstance(call.func, ast.Attribute) and (not given or call.func.attr in LISTS_METHODS):
            given = [*given, call.func.value]  # also the folder of folder.rglob(pattern)
        found = set().union(*(names_of_read(self.analysis, path, scope) for path in given))
        return found | _as_folders(found) if self.analysis.called(call, scope) & ENTERS else found


def _as_folders(names: Collection[str]) -> Names:
    """Return names of folders that are only made: what reads the files in them does not wait for that."""
    return frozenset(f"{name} as a folder" for name in names)


def _are_same(read: Collection[str], written: Collection[str]) -> bool:
    return not set(read).isdisjoint(set(written) - {ANY})

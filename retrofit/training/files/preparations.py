"""Files that are created once where they are missing and then read by every process: caches, downloads, archives."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for, given_parameters, last_name
from retrofit.analysis.files.standard_library import standard_modules
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import closure
from retrofit.analysis.nodes import walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.commands import only_reads
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, LocalClass, Result
from retrofit.training.torch_api.files import (
    COMMANDS,
    DOWNLOADING_BASES,
    FETCHES,
    FILE_COPIES,
    KEEPS_DATA,
    READERS,
    REMOVERS,
    RENAMES,
    TRAINS_INTO_FILE,
    UNPACK_METHODS,
    parameters_to_download,
    prepares_itself,
)
from retrofit.training.torch_api.output import LOGGER_METHODS, PRINTS

from ..data.seeds import draws
from ..data.workers import run_elsewhere
from ..distributed.rank_ordered import runs_in_turn
from ..loops import Path
from ..model.models import reachable_from_loops
from .guards import runs_on_one
from .missing_files import Missing, is_asking, missing_at
from .outputs import FOLDER, OPEN, SAVE, STORE, WRITE, Output
from .own_names import makes_name

KEEPING = {SAVE, WRITE, OPEN, STORE}
COPYING = FILE_COPIES | {"os.rename"}


@dataclass(frozen=True)
class Preparation:
    """Statements of one block that one process has to be done with before the others begin."""

    node: ast.AST
    scope: Scope
    statements: tuple[ast.stmt, ...]
    message: str
    draws: bool = False  # random numbers, which the processes that find it made do not draw
    is_forced: bool = False  # perhaps, by an option: it is then made by all, one after the other


def find_preparations(
    analysis: Analysis, outputs: list[Output], paths: list[Path], busy: Collection[ast.AST]
) -> list[Preparation]:
    """Return what every process prepares at once; nothing that holds a node of `busy`, which all run together."""
    search = _Search(analysis, outputs, paths, busy)
    found: list[Preparation] = []
    for node, scope in reached_nodes(analysis).of(ast.Call, ast.If, ast.Try, ast.IfExp):
        preparation = search.at(node, scope)
        if preparation is not None and not _is_taken_care_of(analysis, preparation):
            found.append(preparation)
    whole = {part for p in found for statement in p.statements for part in walk(statement) if part is not statement}
    return [p for p in found if p.statements[0] not in whole]


def _is_taken_care_of(analysis: Analysis, preparation: Preparation) -> bool:
    first, scope = preparation.statements[0], preparation.scope
    return runs_on_one(analysis, scope, first) or runs_in_turn(analysis, scope, first)


class _Search:
    def __init__(self, analysis: Analysis, outputs: list[Output], paths: list[Path], busy: Collection[ast.AST]) -> None:
        self.analysis = analysis
        self.outputs = {output.call: output for output in outputs}
        self.busy = busy
        self.in_loops = {node for node, _ in reachable_from_loops(analysis, paths)}

    def at(self, node: ast.AST, scope: Scope) -> Preparation | None:
        if isinstance(node, ast.Call) and self._downloads(node, scope):
            return Preparation(node, scope, (scope.source.statement(node),), "every process downloads the data")
        if not isinstance(node, (ast.If, ast.Try, ast.IfExp)) or node in self.in_loops:
            return None
        missing = missing_at(self.analysis, node, scope)
        if missing is None or not self._prepares(missing) or scope in run_elsewhere(self.analysis):
            return None
        if any(self._undoes(part, where) for part, where in self._run(missing.otherwise, scope)):
            return None
        statements = _in_no_loop(scope, missing.whole)
        parts = self._run(statements, scope)
        if any(part in self.busy or _yields_in(part, where, scope) for part, where in parts):
            return None
        calls = [(part, where) for part, where in parts if isinstance(part, ast.Call)]
        is_renamed = any(self.analysis.called(call, where) & RENAMES for call, where in calls)
        if not is_renamed and any(self._is_named_by_process(call, where) for call, where in calls):
            return None  # another one for each process, which none of them finds made
        is_drawn = any(isinstance(part, ast.Call) and draws(self.analysis, part, where) for part, where in parts)
        message = "every process makes what is missing at the same time"
        is_forced = isinstance(node, (ast.If, ast.IfExp)) and isinstance(node.test, ast.BoolOp)
        return Preparation(node, scope, tuple(statements), message, is_drawn, is_forced)

    def _is_named_by_process(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether this makes a file or a folder with the time, or chance, in its name."""
        output = self.outputs.get(call)
        if output is None or output.kind not in KEEPING | {FOLDER}:
            return False
        paths = [origin for part in output.call.args for origin in computed_from(self.analysis, part, scope)]
        calls = [(origin.node, origin.scope) for origin in paths if isinstance(origin.node, ast.Call)]
        return any(makes_name(self.analysis, call, where) for call, where in calls)

    def _undoes(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node, run where the thing is there, ends the program or removes something.

        The processes that come after the first one must not do so: it is rank 0's that they find.
        """
        if isinstance(node, ast.Raise):
            return True
        return isinstance(node, ast.Call) and bool(self.analysis.called(node, scope) & (EXITS | REMOVERS))

    def _downloads(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call fetches data, or may by its flag: `MNIST(root, download=is_new)`, `Planetoid(root)`."""
        names = self.analysis.called(call, scope)
        for value in self.analysis.evaluate(call.func, scope):
            if isinstance(value, LocalClass) and self.analysis.classes.method(value.scope, "__init__") is None:
                names = names | self.analysis.classes.bases(value.scope)
            elif isinstance(value, LocalClass):
                names = names | (self.analysis.classes.bases(value.scope) & DOWNLOADING_BASES)
        flag = argument_for(call, parameters_to_download(names), "download")
        if isinstance(flag, ast.Constant):
            return flag.value is True
        if flag is not None and not self.analysis.functions_called(call, scope):
            return True
        is_data = any(prepares_itself(name) for name in names) or bool(names & DOWNLOADING_BASES)
        return is_data and call not in self.in_loops

    def _prepares(self, missing: Missing) -> bool:
        """Return whether something is fetched, or is kept that is read later."""
        made = self._run(missing.made, missing.scope)
        calls = [(part, where) for part, where in made if isinstance(part, ast.Call)]
        if any(self._fetches(call, where) for call, where in calls):
            return True
        keeps = any(self._keeps(call, where) for call, where in calls)
        if not keeps and not any(self._is_given_path(call, where, missing) for call, where in calls):
            return False
        if any(isinstance(part, ast.Continue) for part in missing.otherwise[-1:]):
            return True  # of each thing of a loop what is missing is made
        reads = [(part, missing.scope) for statement in missing.otherwise for part in walk(statement)]
        if isinstance(missing.node, ast.Try):
            return any(isinstance(part, ast.Call) for part, _ in reads)
        inside = {part for part, _ in made}
        return any(self._is_read(p, s, inside) or self._is_named_again(p, s, inside) for p, s in missing.paths)

    def _fetches(self, call: ast.Call, scope: Scope) -> bool:
        names = self.analysis.called(call, scope)
        if self._downloads(call, scope) or names & FETCHES:
            return True
        if any(name.rpartition(".")[2].startswith("download") for name in names):
            return True
        if names & COMMANDS:
            if any(only_reads(call, name, scope.source.parents[call]) for name in names & COMMANDS):
                return False
            return not any("mkdir" in str(part.value) for part in walk(call) if isinstance(part, ast.Constant))
        return isinstance(call.func, ast.Attribute) and call.func.attr in UNPACK_METHODS

    def _keeps(self, call: ast.Call, scope: Scope) -> bool:
        output = self.outputs.get(call)
        if output is not None and output.kind == OPEN and _outlives(scope.source.parents[call]):
            return False  # a log that stays open, to which every process would write
        if output is not None and (output.kind in KEEPING or (output.kind == FOLDER and output.name in COPYING)):
            return True
        if self.analysis.called(call, scope) & TRAINS_INTO_FILE:
            return True
        is_own = bool(self.analysis.functions_called(call, scope))
        name = call.func.attr if isinstance(call.func, ast.Attribute) and not is_own else ""
        return name in KEEPS_DATA or (name.startswith("save") and bool(call.args))

    def _is_given_path(self, call: ast.Call, scope: Scope, missing: Missing) -> bool:
        """Return whether a function of a library gets the path of what is missing, and gives nothing: it makes it."""
        if not isinstance(scope.source.parents[call], ast.Expr) or call in self.outputs:
            return False
        if self.analysis.functions_called(call, scope) or is_asking(self.analysis, call, scope):
            return False
        names = self.analysis.called(call, scope)
        packages = {name.partition(".")[0] for name in names if "." in name} - {*standard_modules(), "torch"}
        if not packages or names & (READERS | PRINTS) or last_name(call) in LOGGER_METHODS:
            return False
        return any(where is scope and _mentions(call, ast.unparse(path)) for path, where in missing.paths)

    def _is_read(self, path: ast.expr, scope: Scope, inside: set[ast.AST]) -> bool:
        """Return whether something else than what makes a file is given its path, here or where it comes from."""
        places = closure([(path, scope, path)], self._given)
        return any(self._is_taken(given, where, inside | {call}) for given, where, call in places)

    def _given(self, place: tuple[ast.expr, Scope, ast.expr]) -> Iterator[tuple[ast.expr, Scope, ast.expr]]:
        """Yield what calls give for a parameter, with the scope and the call."""
        path, scope, _ = place
        if isinstance(path, ast.Name) and isinstance(scope.node, FUNCTIONS) and path.id in given_parameters(scope):
            for site in self.analysis.callers(scope.node):
                given = site.argument(given_parameters(scope), path.id)
                if given is not None:
                    yield *given, site.call

    def _is_taken(self, path: ast.expr, scope: Scope, inside: set[ast.AST]) -> bool:
        """Return whether a node that is not in `inside` can read what has this path."""
        text = ast.unparse(path)
        owner = scope.enclosing_class() if "self" in text else None
        if owner is None and isinstance(path, ast.Name):
            found = scope.find(path.id)
            owner = found[0] if found is not None and found[0].parent is None else None  # a constant of the module
        for where in owner.walk() if owner is not None else [scope]:
            names = {text} | self._names_under(where, text)
            for node in own_nodes(where.node):
                if node not in inside and self._takes(node, where) and any(_mentions(node, name) for name in names):
                    return True
        return False

    def _names_under(self, scope: Scope, text: str) -> set[str]:
        """Return the variables that are set to a path below another: `folder = os.path.join(root, "train")`."""
        found: set[str] = set()
        for node in own_nodes(scope.node):
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _mentions(node.value, text)):
                continue
            if self.analysis.called(node.value, scope) & {"os.path.join", "pathlib.Path"}:
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        return found

    def _is_named_again(self, path: ast.expr, scope: Scope, inside: set[ast.AST]) -> bool:
        """Return whether a file's own name, `samples.pt`, is written anywhere else where something may read it."""
        made = [
            v.call if isinstance(v, Result) else v.node
            for v in self.analysis.evaluate(path, scope)
            if isinstance(v, (Result, Display))
        ]
        own = {part for expression in (path, *made) for part in walk(expression)}
        names = {part.value for part in own if isinstance(part, ast.Constant) and _is_file_name(part.value)}
        for node, where in reached_nodes(self.analysis).of(ast.Constant) if names else ():
            if node.value not in names or node in own or node in inside:
                continue
            around = [outer for outer in where.source.ancestors(node) if isinstance(outer, ast.Call)]
            if not any(call in self.outputs or is_asking(self.analysis, call, where) for call in around):
                return True
        return False

    def _takes(self, node: ast.AST, scope: Scope) -> bool:
        """Return whether a node can read what it is given: another call than those that ask, write or show."""
        if isinstance(node, ast.Return):
            return True
        if isinstance(node, ast.Assign):
            return any(isinstance(target, ast.Attribute) for target in node.targets)
        if not isinstance(node, ast.Call) or node in self.outputs or is_asking(self.analysis, node, scope):
            return False
        return not any(name == "str" or name.startswith("os.path.") for name in self.analysis.called(node, scope))

    def _run(self, statements: Sequence[ast.AST], scope: Scope) -> list[tuple[ast.AST, Scope]]:
        """Return the nodes of statements, and of the functions of the project that they call."""
        return list(nodes_run(self.analysis, [(statement, scope) for statement in statements]))


def _yields_in(node: ast.AST, where: Scope, scope: Scope) -> bool:
    """Return whether a function yields at a node of its own; what it calls to make a file may be a generator."""
    return isinstance(node, (ast.Yield, ast.YieldFrom)) and where is scope


def _is_file_name(text: object) -> bool:
    return isinstance(text, str) and bool(re.fullmatch(r"[^\s*]*\.\w+", text))


def _mentions(node: ast.AST, text: str) -> bool:
    """Return whether a path is given to a call, or is what a statement hands on."""
    if isinstance(node, ast.Call):
        given: list[ast.AST] = [*node.args, *(keyword.value for keyword in node.keywords)]
        given += [node.func.value] if isinstance(node.func, ast.Attribute) else []
    else:
        given = [node.value] if isinstance(node, (ast.Return, ast.Assign)) and node.value is not None else []
    parts = (part for expression in given for part in walk(expression) if isinstance(part, ast.expr))
    return any(ast.unparse(part) == text for part in parts)


def _in_no_loop(scope: Scope, statements: list[ast.stmt]) -> list[ast.stmt]:
    """Return the outermost loop around statements, so that the processes wait once and not for each file."""
    for outer in scope.source.ancestors(statements[0]):
        if outer is scope.node:
            break
        if isinstance(outer, (ast.For, ast.While)):
            statements = [outer]
    return statements


def _outlives(holder: ast.AST) -> bool:
    """Return whether what an assignment keeps is an attribute of an object."""
    return isinstance(holder, ast.Assign) and any(isinstance(target, ast.Attribute) for target in holder.targets)

"""Effects of a project on the world outside: files written, folders created, lines printed, trackers started."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.flow.operands import computed_from
from retrofit.analysis.flow.reachability import calls_named, reached_calls
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, own_nodes
from retrofit.analysis.values.commands import only_reads
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Display, External, LocalClass, LocalFunction, Result
from retrofit.analysis.values.partials import run_through_partial
from retrofit.training.torch_api.files import (
    BUFFERS,
    COMMANDS,
    FILE_CHANGERS,
    MOVES,
    OPENERS,
    OWN_FOLDERS,
    OWN_NAMES,
    RENAMES,
    SAVES_BY_NAME,
    SENDERS,
    TO_TEXT,
    WRITERS,
    WRITES_OBJECT,
    WRITING_METHODS,
)
from retrofit.training.torch_api.output import BARS, FILE_HANDLERS, FILE_LOGGERS, LOG_HANDLERS, LOGGERS, SHOWS, STREAMS
from retrofit.training.torch_api.trackers import TRACKERS

from .stores import opens_store
from .trackers import is_tracking

OS_ERRORS = frozenset({"OSError", "FileExistsError", "IOError", "EnvironmentError", "PermissionError", "Exception"})
FILE_NAME = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,7}$")  # a text that ends like one
WRITING_MODE = re.compile(r"(?=.*[wax+])[rwaxbt+U]{1,4}")  # of open()
SAVE, WRITE, FOLDER, OPEN, STORE, TRACKER, TRACK, PRINT, BAR, LOGGER, SHOW = (
    "save", "write", "folder", "open", "store", "tracker", "track", "print", "bar", "logger", "show",
)  # fmt: skip


@dataclass(frozen=True)
class Output:
    """A call that is seen outside. `kind` is one of the constants above, `name` what is called."""

    kind: str
    name: str
    call: ast.Call
    scope: Scope


def find_outputs(analysis: Analysis) -> list[Output]:
    """Return everything that the reachable code of a project shows or writes, in source order."""
    found = [output for node, scope in reached_calls(analysis) for output in _output_of(analysis, node, scope)]
    if calls_named(analysis, OWN_FOLDERS.keys()):
        found = [output for output in found if not _is_in_own_folder(analysis, output)]
    if calls_named(analysis, RENAMES):
        found = [output for output in found if not _is_renamed_by_first(analysis, output)]
    return sorted(found, key=lambda output: output.scope.source.place(output.call))


def _output_of(analysis: Analysis, node: ast.Call, scope: Scope) -> Iterator[Output]:
    if _is_given_a_buffer(analysis, node, scope):
        return
    if _is_of_bar(analysis, node, scope):
        yield Output(SHOW, "write", node, scope)
        return
    names = analysis.called(node, scope) | run_through_partial(analysis, node, scope)
    for name in sorted(names):
        kind = _kind(analysis, name, node, scope)
        if kind:
            yield Output(kind, name, node, scope)
            return
    for value in analysis.evaluate(node.func, scope):
        bases = analysis.classes.bases(value.scope) if isinstance(value, LocalClass) else set()
        if bases & TRACKERS or bases & LOG_HANDLERS:
            kind = TRACKER if bases & TRACKERS else LOGGER
            yield Output(kind, getattr(value.scope.node, "name", ""), node, scope)  # type: ignore[union-attr]
            return
        if bases & FILE_HANDLERS and analysis.classes.method(value.scope, "__init__") is None:  # type: ignore[union-attr]
            yield Output(OPEN, sorted(bases & FILE_HANDLERS)[0], node, scope)
            return
    if not isinstance(node.func, ast.Attribute):
        return
    if _makes_base(node, scope, analysis, FILE_HANDLERS):
        yield Output(OPEN, "logging.FileHandler", node, scope)
        return
    is_own = any(isinstance(value, LocalFunction) for value in analysis.evaluate(node.func, scope))
    is_written = node.func.attr in WRITING_METHODS or any(test(analysis, node, scope) for test in METHOD_TESTS)
    if not is_own and is_written:
        yield Output(WRITE, node.func.attr, node, scope)
    elif not is_own and opens_own_path(node) and not _is_of_module(analysis, node.func.value, scope):
        yield Output(OPEN, "open", node, scope)
    elif node.func.attr.startswith("print_") and _is_of_library(analysis, node.func.value, scope):
        yield Output(SHOW, node.func.attr, node, scope)


def _is_of_library(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether a call of a library has made an object: `model` of model.print_trainable_parameters()."""
    made = analysis.evaluate(node, scope)
    return bool(made) and all(isinstance(value, Result) for value in made)


def _makes_base(call: ast.Call, scope: Scope, analysis: Analysis, classes: Collection[str]) -> bool:
    """Return whether this is `super().__init__(path)` in a class that is derived from one of `classes`."""
    owner = scope.parent
    is_class = owner is not None and isinstance(owner.node, ast.ClassDef)
    return is_class and _is_base_made(call) and not analysis.classes.bases(owner).isdisjoint(classes)  # type: ignore[arg-type]


def _is_base_made(call: ast.Call) -> bool:
    made = call.func if isinstance(call.func, ast.Attribute) and call.func.attr == "__init__" else None
    return made is not None and isinstance(made.value, ast.Call) and last_name(made.value) == "super"


def _is_of_module(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a module of a library, and no path: `lmdb` of lmdb.open("a")."""
    return any(isinstance(value, External) for value in analysis.evaluate(node, scope))


def _is_of_bar(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `bar.write(text)`, which prints where the bar itself is hidden, too."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "write":
        return False
    made = (o for o in origins(analysis, [Origin(call.func.value, scope)]) if isinstance(o.node, ast.Call))
    return any(analysis.called(origin.node, origin.scope) & BARS for origin in made)  # type: ignore[arg-type]


def _is_in_own_folder(analysis: Analysis, output: Output) -> bool:
    """Return whether a file is written to a temporary folder, which each process has for itself and reads from."""
    given = output.call.args if output.kind in (SAVE, WRITE, OPEN, FOLDER) else []
    given = given[1:2] if output.name in MOVES else given  # what is moved out of it is not
    places = (origin for part in given for origin in computed_from(analysis, part, output.scope))
    calls = [(origin.node, origin.scope) for origin in places if isinstance(origin.node, ast.Call)]
    own = [place for place in calls if analysis.called(*place) & OWN_FOLDERS.keys()]
    return any(folder_of_temporary(analysis, *place) is None for place in own)


def _is_renamed_by_first(analysis: Analysis, output: Output) -> bool:
    """Return whether a script lets each process make something of its own, of which the first gets the final name.

    The others find that taken, by an error that is caught: nothing has to be done for several processes.
    """
    scope = output.scope
    given = {origin.node for part in output.call.args for origin in computed_from(analysis, part, scope)}
    for node in own_nodes(scope.node).of(ast.Try):
        if any(map(_catches_taken, node.handlers)):
            for call in (part for statement in node.body for part in walk(statement) if isinstance(part, ast.Call)):
                if analysis.called(call, scope) & RENAMES and call.args:
                    made_of = [o for o in computed_from(analysis, call.args[0], scope) if isinstance(o.node, ast.Call)]
                    own = [o.node for o in made_of if analysis.called(o.node, o.scope) & OWN_NAMES]  # type: ignore[arg-type]
                    if given.intersection(own):
                        return True
    return False


def _catches_taken(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches the error of a name that is taken."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or last_name(kind) in OS_ERRORS for kind in kinds)


def folder_of_temporary(analysis: Analysis, call: ast.Call, scope: Scope) -> ast.expr | None:
    """Return the folder in which a temporary file or folder is made, None where it is one of the system."""
    for name in analysis.called(call, scope) & OWN_FOLDERS.keys():
        given = argument_for(call, [""] * OWN_FOLDERS[name] + ["dir"], "dir")
        if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            return given
    return None


def _is_given_a_buffer(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this writes into memory: `plt.savefig(buffer)`."""
    return any(analysis.named(argument, scope) & BUFFERS for argument in call.args)


def _kind(analysis: Analysis, name: str, call: ast.Call, scope: Scope) -> str:
    if name == "torch.save":
        return SAVE
    if name.startswith("PIL.Image.") and name.endswith(".save"):
        return WRITE
    if name in WRITERS:
        return WRITE if name not in TO_TEXT or len(call.args) > 1 or argument_for(call, [], "stream") else ""
    if SAVES_BY_NAME.fullmatch(name) or (name in SENDERS and isinstance(scope.source.parents[call], ast.Expr)):
        return WRITE
    if name in FILE_CHANGERS:
        is_read = name in COMMANDS and only_reads(call, name, scope.source.parents[call])
        return "" if is_read else FOLDER
    if opens_store(analysis, name, call, scope):
        return STORE
    if name in TRACKERS:
        return TRACKER
    if is_tracking(name):
        return TRACK
    if name in BARS:
        return BAR
    if name == "logging.basicConfig" and path_of(call) is not None:
        return OPEN
    if name in LOGGERS:
        return LOGGER
    if name in ("print", "builtins.print"):
        file = next((keyword.value for keyword in call.keywords if keyword.arg == "file"), None)
        return PRINT if file is None or analysis.named(file, scope) & STREAMS else ""
    if name in SHOWS or (name == "os.write" and _is_terminal(analysis, call, scope)):
        return SHOW
    if name in OPENERS:
        return OPEN if opens_for_writing(analysis, call, scope) else ""
    return OPEN if name in FILE_LOGGERS else ""


def _is_terminal(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is os.write(1, ...), or with sys.stdout.fileno()."""
    first = call.args[0] if call.args else None
    if isinstance(first, ast.Constant):
        return first.value in (1, 2)
    is_number = isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute) and first.func.attr == "fileno"
    return is_number and bool(analysis.named(first.func.value, scope) & STREAMS)  # type: ignore[union-attr]


def path_of(call: ast.Call) -> ast.expr | None:
    """Return the expression of the path in a call that opens a file, of `path.open("w")` what is opened."""
    if isinstance(call.func, ast.Attribute) and opens_own_path(call):
        return call.func.value
    named = next((keyword.value for keyword in call.keywords if keyword.arg in ("filename", "file", "path")), None)
    is_given_self = last_name(call) == "__init__" and not _is_base_made(call)  # FileHandler.__init__(self, path)
    given = call.args[1:] if is_given_self else call.args
    return named if named is not None else given[0] if given else None


def opens_for_writing(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `open(path, "w")`; a mode may also be one of several that write, in a variable."""
    mode = argument_for(call, ["file", "mode"], "mode")
    while isinstance(mode, ast.BinOp):  # "w" + ("b" if is_binary else "")
        mode = mode.left
    modes = analysis.evaluate(mode, scope)
    return bool(modes) and all(
        isinstance(mode, Display) and bool(WRITING_MODE.fullmatch(_text(mode.node))) for mode in modes
    )


def _saves_file(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `image.save(path + ".png")` or `scripted.save("model.pt")`: an object of a library."""
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr != "save" or not call.args:
        return False
    texts = (part.value for part in walk(call.args[0]) if isinstance(part, ast.Constant))
    return any(isinstance(text, str) and bool(FILE_NAME.search(text)) for text in texts)


def _moves_itself(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is `path.rename(other)`: not that of a table, or a text, which give what has been changed."""
    assert isinstance(call.func, ast.Attribute)
    is_one = len(call.args) == 1 and not call.keywords and isinstance(scope.source.parents[call], ast.Expr)
    is_module = _is_of_module(analysis, call.func.value, scope)
    return is_one and call.func.attr in ("rename", "replace") and not is_module


def _writes_object(analysis: Analysis, call: ast.Call, scope: Scope) -> bool:
    """Return whether this writes an object of a library to a file: PlyData([vertices]).write(path)."""
    assert isinstance(call.func, ast.Attribute)
    libraries = WRITES_OBJECT.get(call.func.attr)
    if libraries is None or not call.args:
        return False
    values = analysis.evaluate(call.func.value, scope)
    return any(isinstance(value, Result) and value.builder.startswith(libraries) for value in values)


METHOD_TESTS = (_saves_file, _moves_itself, _writes_object)


def opens_own_path(call: ast.Call) -> bool:
    """Return whether this is `path.open("w")`, and not `files.open(path, mode="w")` of something else."""
    is_open = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    is_path = not call.args or argument_for(call, [], "mode") is None
    return is_open and is_path and bool(WRITING_MODE.fullmatch(_text(argument_for(call, ["mode"], "mode"))))


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

"""RF605 process-group-missing: nothing makes the processes one job."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, insert_after, insert_before, surround
from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup, starting_function
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import ends_program
from retrofit.training.launch.arguments import Parsing
from retrofit.training.placement import block_of

RULE = CATALOG["RF605"]
INVALID = [
    """\
args = parser.parse_args()
model = Net().cuda()
""",
    """\
model = DDP(Net())
""",
    """\
os.environ["WORLD_SIZE"] = "2"
""",
]
VALID = [
    """\
rd.add_runtime_flags(parser)
args = parser.parse_args()
rd.setup_distributed()
model = Net().cuda()
""",
    # joined in a function, or only in some runs
    """\
def join():
    dist.init_process_group("nccl")


if "RANK" in os.environ:
    join()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.paths or project.distribution.joins:
        return
    source, statement, edit = edit_after_setup(project, None)
    edits = [edit, *_cleanup(project)]
    if project.parsings:
        edits = [*_flags(project.parsings[0]), *edits]
    yield found(RULE, source, statement, "no process group is initialized", edits)


def _flags(parsing: Parsing) -> list[Edit]:
    source = parsing.scope.source
    if isinstance(parsing.parser, (ast.Name, ast.Attribute)):
        text = source.segment(parsing.parser)
        return [insert_before(source, source.statement(parsing.call), [f"rd.add_runtime_flags({text})"])]
    return surround(source, parsing.parser, "rd.add_runtime_flags(", ")")


def _cleanup(project: Project) -> list[Edit]:
    function = None if project.parsings else starting_function(project)
    if function is not None:
        return _cleanup_in(project, function)
    outermost = [path.frames[-1] for path in project.paths]
    frame = next((frame for frame in outermost if not frame.scope.is_function), None)
    if frame is None:
        return []
    source = frame.scope.source
    statement = _top(source, frame.node, frame.scope)
    last = block_of(source, statement)[-1]
    if ends_program(project.analysis, last, frame.scope):
        functions = {path.frames[-2].scope if len(path.frames) > 1 else None for path in project.paths}
        called = functions.pop() if len(functions) == 1 else None
        return _cleanup_in(project, called) if called and statement is last and called.is_function else []
    return [insert_after(source, last, ["rd.cleanup_distributed()"])]


def _cleanup_in(project: Project, function: Scope) -> list[Edit]:
    """Return an edit that leaves the group at the end of a function, where the program ends with what called it."""
    last = function.node.body[-1]  # type: ignore[union-attr, index]
    if getattr(function.node, "name", "") == "__init__" or ends_program(project.analysis, last, function):
        return []
    if not isinstance(last, ast.Return):
        return [insert_after(function.source, last, ["rd.cleanup_distributed()"])]
    is_known = last.value is None or isinstance(last.value, (ast.Constant, ast.Name, ast.Attribute))
    return [insert_before(function.source, last, ["rd.cleanup_distributed()"])] if is_known else []


def _top(source: Source, node: ast.AST, scope: Scope) -> ast.stmt:
    """Return the statement around `node` in the block of the module, or of `if __name__ == "__main__":`."""
    statement = source.statement(node)
    for outer in source.ancestors(statement):
        if outer is scope.node or is_main_guard(outer):
            break
        if isinstance(outer, ast.stmt):
            statement = outer
    return statement

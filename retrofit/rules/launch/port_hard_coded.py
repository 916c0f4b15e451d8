"""RF602 port-hard-coded: the processes meet at an address that is written into the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from retrofit.analysis.flow.main_guard import is_main_guard
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.launch.environment import assignments_to_environ
from retrofit.training.torch_api.distributed import SPAWNS, STARTS_PROCESS

RULE = CATALOG["RF602"]
INVALID = [
    """\
os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl")
""",
    """\
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:23456")  # RF602
""",
    """\
PORT = 29500
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(PORT))
dist.init_process_group("nccl")
""",
    """\
os.environ["MASTER_PORT"] = "29500"  # RF602
torch.multiprocessing.spawn(print, nprocs=2)
dist.init_process_group("nccl")
""",
]
VALID = [
    """\
os.environ.setdefault("MASTER_PORT", "29500")
dist.init_process_group("nccl")
""",
    # only where no launcher has set it
    """\
if "MASTER_PORT" not in os.environ:
    os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl", init_method="env://")
""",
    # another one for each run
    """\
port = random.randint(20000, 30000)
os.environ["MASTER_PORT"] = str(port)
dist.init_process_group("nccl", init_method=f"tcp://localhost:{port}")
""",
    # a script that starts its own processes on one machine
    """\
os.environ["MASTER_ADDR"] = "localhost"
torch.multiprocessing.spawn(print, nprocs=2)
dist.init_process_group("nccl")
""",
]
ADDRESS = re.compile(r"tcp://[^/]+:\d+/?")
SPAWNING = SPAWNS | (STARTS_PROCESS - {"multiprocessing.Process"})


def find(project: Project) -> Iterator[Finding]:
    if not project.distribution.is_by_hand:
        return
    # A script that starts its own processes has to say where they meet, on this machine; the port may still be taken.
    names = {"MASTER_PORT"} if project.calls_any(SPAWNING) else {"MASTER_PORT", "MASTER_ADDR"}
    for statement, name, value, scope in assignments_to_environ(project.analysis):
        is_literal = _literal(project, value, scope) is not None
        if name in names and is_literal and not _is_under_condition(scope, statement):
            yield found(RULE, scope.source, statement, f"{name} is the same in every run")
    for site in project.distribution.joins:
        method = next((keyword.value for keyword in site.call.keywords if keyword.arg == "init_method"), None)
        text = _literal(project, method, site.scope) if method is not None else None
        if isinstance(text, str) and ADDRESS.fullmatch(text):
            yield found(RULE, site.scope.source, method, f"{text} is the same in every run")  # type: ignore[arg-type]


def _literal(project: Project, node: ast.expr, scope: Scope) -> object:
    """Return the one text or number that an expression always is, None where it can be another."""
    if isinstance(node, ast.Call) and project.analysis.called(node, scope) & {"str"} and len(node.args) == 1:
        node = node.args[0]
    made = [getattr(value, "node", None) for value in project.analysis.evaluate(node, scope)]
    return made[0].value if len(made) == 1 and isinstance(made[0], ast.Constant) else None


def _is_under_condition(scope: Scope, statement: ast.stmt) -> bool:
    """Return whether the address is only set in some case, as when no launcher has set it."""
    if isinstance(statement, ast.Expr) and "environ.setdefault(" in ast.unparse(statement):
        return True
    for outer in scope.source.ancestors(statement):
        if outer is scope.node:
            return False
        if isinstance(outer, (ast.If, ast.Try)) and not is_main_guard(outer):
            return True
    return False

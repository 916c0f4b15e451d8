"""RF606 visible-gpus-set: the script says itself which GPUs it sees."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.edits import Edit, delete_statement, surround
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import place_before
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_texts import mentions_rank
from retrofit.training.launch.environment import assignments_to_environ
from retrofit.training.placement import import_edit
from retrofit.training.torch_api.runtime import VISIBLE_GPUS

RULE = CATALOG["RF606"]
INVALID = [
    """\
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu
""",
    """\
os.environ.update({"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "1"})
""",
    """\
KEY = "CUDA_VISIBLE_DEVICES"
os.environ.setdefault(KEY, "0")
""",
    """\
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
model = DDP(Net())
""",
]
VALID = [
    """\
args = parser.parse_args()
os.environ["CUDA_VISIBLE_DEVICES"] = rd.devices.visible_gpus(args.gpu)
""",
    # no GPU at all
    """\
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
""",
    # one GPU for each process
    """\
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
""",
    # several GPUs for several processes
    """\
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
model = DDP(Net())
""",
    # another variable
    """\
os.environ["OMP_NUM_THREADS"] = "1"
""",
]
NONE = {"", "-1"}  # these mean the CPU


def find(project: Project) -> Iterator[Finding]:
    for statement, name, value, scope in assignments_to_environ(project.analysis):
        if name != "CUDA_VISIBLE_DEVICES" or mentions_rank(project.analysis, value, scope):
            continue
        text = value.value if isinstance(value, ast.Constant) else None
        is_chosen = isinstance(value, ast.Call) and VISIBLE_GPUS in project.analysis.called(value, scope)
        is_one = isinstance(text, str) and text not in NONE and "," not in text
        if is_chosen or text in NONE or (project.distribution.is_by_hand and not is_one):
            continue
        edits = [] if project.distribution.is_by_hand else _edits(project, scope, statement, value)
        message = "every process sees the GPUs that are named here, and no other"
        yield found(RULE, scope.source, statement, message, edits)


def _edits(project: Project, scope: Scope, statement: ast.stmt, value: ast.expr) -> list[Edit]:
    """Return the change; none where nothing is imported before the line, after which the runtime's import could be."""
    source = scope.source
    start = source.span(statement)[0]
    if scope.parent is None and import_edit(source, "", before=start).start > start:
        return []
    (start, end), (first, last) = source.span(statement), source.span(value)
    line = f"{source.text[start:first]}rd.devices.visible_gpus({source.text[first:last]}){source.text[last:end]}"
    moved = place_before(project, statement, line)
    if moved is not None:
        return [delete_statement(source, statement), moved]
    return surround(source, value, "rd.devices.visible_gpus(", ")")

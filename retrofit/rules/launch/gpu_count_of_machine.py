"""RF608 gpu-count-of-machine: a size is multiplied by the number of GPUs, in every process that drives one of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import partial

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import surround_inside
from retrofit.analysis.flow.operands import is_loop_variable
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.analysis.flow.sources import Origin, origins
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.launch.devices import SHOWING
from retrofit.training.torch_api.launch import DEVICE_COUNT
from retrofit.training.torch_api.runtime import GPU_COUNT

RULE = CATALOG["RF608"]
_COUNT = re.compile(r"(n|num|nb|number_of|count)_?gpus?(_\w+)?|gpus?_?(num|number|count|n)|gpu_?nums", re.IGNORECASE)
_LIST = re.compile(r"(visible_)?(gpus?|devices?|cuda)(_?(ids?|idx|list|indices))?s?", re.IGNORECASE)
_PASSING = {"max", "min", "int", "float", "abs", "round"}
_OF_ALL = {"batch_size", "num_workers", "workers"}  # arguments that a number of GPUs is given for as it is
INVALID = [
    """\
batch_size = 8 * torch.cuda.device_count()
""",
    """\
n_gpu = torch.cuda.device_count()
test_loader = DataLoader(dataset, batch_size=8, num_workers=4 * n_gpu)
""",
    """\
parser.add_argument("--n_gpu", type=int, default=1)
args = parser.parse_args()
batch_size = 8 * max(1, args.n_gpu)
""",
]
VALID = [
    """\
batch_size = 8 * rd.devices.own_gpu_count(torch.cuda.device_count())
""",
    # a test, and what is shown
    """\
if torch.cuda.device_count() > 1:
    print("GPUs:", 2 * torch.cuda.device_count())
""",
    # by hand: a process for each GPU
    """\
dist.init_process_group("nccl")
batch_size = 64 // torch.cuda.device_count()
""",
    # another number
    """\
parser.add_argument("--n_heads", type=int, default=1)
width = 8 * parser.parse_args().n_heads
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # there the number of GPUs of a machine is that of its processes
    for node, scope in _counted_gpus(project.analysis):
        around = [outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call)]
        if any(last_name(call.func) in SHOWING or GPU_COUNT in project.analysis.called(call, scope) for call in around):
            continue
        message = f"{scope.source.segment(node)} counts the GPUs of all processes, in each of them"
        edits = surround_inside(scope.source, node, "rd.devices.own_gpu_count(", ")")
        yield found(RULE, scope.source, node, message, edits)


def _counted_gpus(analysis: Analysis) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the numbers of GPUs that something is multiplied with or divided by, or that are a size themselves."""
    for node, scope in reached_nodes(analysis).of(ast.BinOp, ast.AugAssign, ast.keyword):
        for part in _factors(node):
            if _is_gpu_count(analysis, part, scope):
                yield part, scope


def _factors(node: ast.AST) -> list[ast.expr]:
    operators = (ast.Mult, ast.Div, ast.FloorDiv)
    if isinstance(node, ast.BinOp) and isinstance(node.op, operators):
        return [node.left, node.right]
    if isinstance(node, ast.AugAssign) and isinstance(node.op, operators):
        return [node.value]
    return [node.value] if isinstance(node, ast.keyword) and node.arg in _OF_ALL else []


def _is_gpu_count(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is a number of GPUs: counted, an option, or the length of a list of them."""
    through = partial(_operands, analysis)
    return any(_is_count(analysis, origin) for origin in origins(analysis, [Origin(node, scope)], through))


def _operands(analysis: Analysis, origin: Origin) -> Iterable[Origin] | None:
    """Return what a number is rounded from or chosen from; None for what is not computed here."""
    node = origin.node
    is_passing = isinstance(node, ast.Call) and analysis.called(node, origin.scope) & _PASSING
    return [origin.to(part) for part in node.args] if is_passing else None  # type: ignore[union-attr]


def _is_count(analysis: Analysis, origin: Origin) -> bool:
    """Return whether this very expression counts GPUs, or is called so."""
    node, scope = origin.node, origin.scope
    if origin.keys:
        return False
    if isinstance(node, ast.Call):
        return _is_counting(analysis, node, scope)
    if isinstance(node, ast.Subscript):
        return _is_name_of_count(node.slice)
    if not isinstance(node, (ast.Name, ast.Attribute)) or GPU_COUNT in analysis.named(node, scope):
        return False
    return bool(_COUNT.fullmatch(last_name(node))) and not is_loop_variable(analysis, node, scope)


def _is_counting(analysis: Analysis, node: ast.Call, scope: Scope) -> bool:
    names = analysis.called(node, scope)
    if DEVICE_COUNT in names:
        return True
    if "len" in names and len(node.args) == 1:
        return _is_gpu_list(analysis, node.args[0], scope)
    is_read = last_name(node.func) in ("get", "getenv") and not analysis.functions_called(node, scope)
    return is_read and bool(node.args) and _is_name_of_count(node.args[0])


def _is_name_of_count(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and bool(_COUNT.fullmatch(key.value))


def _is_gpu_list(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether this is a list of GPUs, by what it is called or what it is made of: args.gpus.split(",")."""
    if isinstance(node, (ast.Name, ast.Attribute)) and _LIST.fullmatch(last_name(node)):
        return True
    texts = [part.value for part in walk(node) if isinstance(part, ast.Constant)]
    is_split = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "split"
    return is_split and ("CUDA_VISIBLE_DEVICES" in texts or _is_gpu_list(analysis, node.func.value, scope))  # type: ignore[attr-defined]

"""RF608 gpu-count-of-machine: a size is multiplied by the number of GPUs, in every process that drives one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import surround_inside
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.launch.devices import SHOWING
from retrofit.training.launch.gpu_counts import counted_gpus
from retrofit.training.torch_api.runtime import GPU_COUNT

RULE = CATALOG["RF608"]
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
    for node, scope in counted_gpus(project.analysis, reached_nodes(project.analysis)):
        around = [outer for outer in scope.source.ancestors(node) if isinstance(outer, ast.Call)]
        if any(last_name(call.func) in SHOWING or GPU_COUNT in project.analysis.called(call, scope) for call in around):
            continue
        message = f"{scope.source.segment(node)} counts the GPUs of all processes, in each of them"
        edits = surround_inside(scope.source, node, "rd.devices.own_gpu_count(", ")")
        yield found(RULE, scope.source, node, message, edits)

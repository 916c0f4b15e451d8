"""RF607 device-not-chosen: nothing gives a process a GPU of its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.flow.reachability import reached_calls, reached_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.launch.environment import assignments_to_environ
from retrofit.training.torch_api.launch import CHOOSES_DEVICE

RULE = CATALOG["RF607"]
INVALID = [
    """\
dist.init_process_group("nccl")
model = DDP(Net().cuda())
""",
    """\
dist.init_process_group("nccl")
device = torch.device("cuda")
model = DDP(Net().to("cuda"))
""",
]
VALID = [
    """\
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(Net().cuda())
""",
    # a device with a number
    """\
dist.init_process_group("nccl")
device = torch.device("cuda", dist.get_rank())
model = DDP(Net().to(device))
images = torch.ones(8, 4).to("cuda")
""",
    # the process sees one GPU
    """\
os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["LOCAL_RANK"]
dist.init_process_group("nccl")
model = DDP(Net().cuda())
""",
    # the CPU
    """\
dist.init_process_group("gloo")
model = DDP(Net().to("cpu"))
""",
]


def find(project: Project) -> Iterator[Finding]:
    if not project.wrapping.sites or _chooses(project):
        return
    for node, scope in reached_calls(project.analysis):
        if not isinstance(node.func, ast.Attribute) or node.keywords:
            continue
        is_to = node.func.attr == "to" and [getattr(argument, "value", None) for argument in node.args] == ["cuda"]
        is_cuda = node.func.attr == "cuda" and not node.args
        if is_cuda or is_to:
            yield found(RULE, scope.source, node, "every process goes to GPU 0")
            return


def _chooses(project: Project) -> bool:
    """Return whether the code may choose a GPU: by a call, a number in `cuda(...)` or a string, the environment."""
    if project.calls_any(CHOOSES_DEVICE):
        return True
    if any(name == "CUDA_VISIBLE_DEVICES" for _, name, _, _ in assignments_to_environ(project.analysis)):
        return True
    for node, scope in reached_nodes(project.analysis):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "cuda:" in node.value:
            return True
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "cuda" and (node.args or node.keywords):
                return True
            if "torch.device" in project.analysis.called(node, scope) and len(node.args) > 1:
                return True
    return False

"""RF604 device-shared: a device that is named by number is the same for every process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import Edit, insert_before, replace, surround_inside
from retrofit.analysis.flow.reachability import reached_nodes
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.early_gpu import early_gpu
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.launch.devices import NUMBERED, NamedDevice, named_devices, reads_numbers

RULE = CATALOG["RF604"]
HELP_EARLY = "rd.devices.choose_gpu() before it: until then the current GPU of each process is GPU 0."
INVALID = [
    """\
device = torch.device("cuda:0")
""",
    """\
parser.add_argument("--gpu", type=int, default=0)
args = parser.parse_args()
model = Net().cuda(args.gpu)  # RF604
weight = torch.ones(2, device=f"cuda:{args.gpu}")  # RF604
with torch.cuda.device(0):  # RF604
    weight = weight.to(1)  # RF604
""",
    """\
import json

config = json.load(open("config.json"))
weight = torch.ones(2).to(config["train"]["device"])  # RF604
other = torch.ones(2).to(os.environ.get("DEVICE", "cuda"))  # RF604
""",
    """\
def put(tensor, where):
    return tensor.to(where)


parser.add_argument("--device", default="cpu")
args = parser.parse_args()
put(torch.ones(2), args.device)  # RF604
""",
]
VALID = [
    """\
device = torch.device("cuda")
""",
    """\
rd.devices.choose_gpu()
weight = torch.ones(2).cuda()
""",
    # no number, or that of this process
    """\
parser.add_argument("--gpu", type=int, default=0)
args = parser.parse_args()
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
x = torch.randn(2, 3).to(torch.float32).cuda(non_blocking=True)
x = x.to(dataset.tensors[0].device).type(torch.cuda.FloatTensor)
x = x.cuda(int(os.environ.get("LOCAL_RANK", 0))).cuda(torch.cuda.current_device())
""",
    # a text to be shown or compared
    """\
parser.add_argument("--device", default="cpu")
args = parser.parse_args()
print(f"cuda:{total}", args.device == "cuda:0")
""",
    # by hand: a launcher may set the option for each process
    """\
parser.add_argument("--gpu", type=int, default=0)
model = DDP(Net().cuda(parser.parse_args().gpu))
""",
]


def find(project: Project) -> Iterator[Finding]:
    yield from _before_joining(project)
    # In a script that distributes itself a GPU's number outside the loop may be for runs of one process, and an option
    # may be what its launcher sets for each process.
    by_hand = project.distribution.is_by_hand
    nodes = project.in_batches if by_hand else reached_nodes(project.analysis)
    inside = {node for node, _ in nodes} if by_hand else set()
    is_read = reads_numbers(project.analysis, nodes)
    for device in named_devices(project.analysis, nodes):
        if by_hand and not (device.is_literal and device.node in inside):
            continue
        if device.is_literal and device.is_text and (is_read or not _is_first(device)) and _is_default(device):
            continue  # where the option is read
        source, node = device.scope.source, device.node
        text = source.segment(node).strip("'\"") if device.is_literal else source.segment(node)
        yield found(RULE, source, node, f"{text} is the same GPU for every process", _edits(device, is_read))


def _before_joining(project: Project) -> Iterator[Finding]:
    """Yield the first use of CUDA before a process has its own GPU, which it has once it joins the others."""
    early = early_gpu(project)
    if early is not None:
        source, call, before = early
        edits = [insert_before(project.entry, before, ["rd.devices.choose_gpu()"])]
        yield found(RULE, source, call, "CUDA is used before a process has chosen its GPU", edits, help=HELP_EARLY)


def _edits(device: NamedDevice, is_read: bool) -> list[Edit]:
    """Return the change: "cuda:0" loses its number, and for one process means the same GPU as before.

    Where the number is read, it gets that of the process.
    """
    source = device.scope.source
    if device.is_literal and device.is_text and _is_first(device) and not is_read:
        return [replace(source, device.node, NUMBERED.sub("cuda", source.segment(device.node)))]
    return surround_inside(source, device.node, "rd.devices.own_device(", ")")


def _is_first(device: NamedDevice) -> bool:
    return isinstance(device.node, ast.Constant) and device.node.value == "cuda:0"


def _is_default(device: NamedDevice) -> bool:
    """Return whether this is the default of an option, which a parser shows to the user."""
    parents = device.scope.source.parents
    outer = parents.get(parents.get(device.node))  # type: ignore[arg-type]
    return isinstance(outer, ast.Call) and last_name(outer.func) == "add_argument"

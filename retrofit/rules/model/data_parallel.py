"""RF208 data-parallel: one process drives several GPUs."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from retrofit.analysis.calls import argument_for
from retrofit.analysis.edits import Edit, call_through, surround, surround_inside
from retrofit.analysis.flow.assignments import upstream
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.reachability import calls_named, reached_calls, reached_nodes
from retrofit.analysis.flow.variables import Variable, variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope, place_of
from retrofit.analysis.values.inference import Analysis
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.model.data_parallel import added_to_wrapper, asked_for, module_run, run_plainly
from retrofit.training.torch_api.launch import DEVICE_COUNT
from retrofit.training.torch_api.modules import COPIES_TO_GPUS, LOAD_STATE_DICT
from retrofit.training.torch_api.runtime import FITTING_KEYS, GPU_COUNT

RULE = CATALOG["RF208"]
INVALID = [
    """\
model = nn.DataParallel(Net().cuda())
""",
    """\
class Wide(nn.DataParallel):
    pass


model = Wide(Net())
""",
    """\
for images, labels in loader:
    outputs = nn.parallel.data_parallel(model, images, device_ids=[0, 1])
    criterion(outputs, labels).backward()
""",
    """\
def run_on_all(images):
    ids = list(range(torch.cuda.device_count()))
    return nn.parallel.parallel_apply(nn.parallel.replicate(model, ids), nn.parallel.scatter((images,), ids))  # RF208


for images, labels in loader:
    criterion(run_on_all(images), labels).backward()
""",
    """\
model = nn.DataParallel(Net(), device_ids=[0, 1])  # RF208
model.load_state_dict(torch.load("last.pt", map_location="cpu"))  # RF208
net = model.module if isinstance(model, nn.DataParallel) else model  # RF208
for images, labels in loader:
    criterion(model.module(images), labels).backward()  # RF208
""",
]
VALID = [
    """\
model = rd.distribute_model(Net().cuda())
""",
    # what a distributed script does in a run of one process
    """\
model = DDP(Net()) if dist.is_initialized() else nn.DataParallel(Net())
""",
    # a class of the project by this name
    """\
class DataParallel(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


model = rd.distribute_model(DataParallel(Net()))
""",
    # only asked for, never made
    """\
net = model.module if isinstance(model, nn.DataParallel) else model
""",
]
MESSAGE = "DataParallel is for one process that drives all GPUs"


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:
        return  # it is what the script does when it is not started as several processes
    analysis = project.analysis
    if project.wrapping.sites:
        return  # DataParallel is what such a script falls back to in one process
    calls = reached_calls(analysis)
    for call, scope in calls:
        if module_run(analysis, call, scope) is not None:
            edits = run_plainly(analysis, call, scope)
            refusal = "" if edits else "it cannot be told what data_parallel gives to the module; write module(inputs)"
            yield found(RULE, scope.source, call, MESSAGE, edits, refusal, kind="data-parallel-call")
    yield from _copying(analysis)
    wrapping = [(c, scope, added_to_wrapper(analysis, c, scope)) for c, scope in calls if c.args or c.keywords]
    wrapping = [(call, scope, more) for call, scope, more in wrapping if more is not None]
    for call, scope, more in wrapping:
        refusal = f"{scope.source.segment(call.func)} is more than DataParallel: {', '.join(more)}" if more else ""
        edits = [] if refusal else call_through(scope.source, call, "rd.model.data_parallel")
        yield found(RULE, scope.source, call, MESSAGE, edits, refusal, kind="data-parallel-extended")
    if wrapping:
        yield from _asking(analysis)
        variables = {
            variable for model in project.models for variable in ({model.variable} | upstream(analysis, model.variable))
        }
        yield from _loading(analysis, calls, variables)
        yield from _run_inside(project, variables)


def _copying(analysis: Analysis) -> Iterator[Finding]:
    """Yield where a script copies a model to several GPUs itself, and the tests of their number that lead there."""
    copying = dict(calls_named(analysis, COPIES_TO_GPUS))
    for node, scope in reached_nodes(analysis).of(ast.If, ast.IfExp) if copying else ():
        branch = node.body if isinstance(node.body, list) else [node.body]
        if not any(part in copying for part, _ in nodes_run(analysis, [(part, scope) for part in branch])):
            continue
        for part in walk(node.test):
            is_count = isinstance(part, (ast.Call, ast.Name, ast.Attribute)) and _is_gpu_count(analysis, part, scope)
            if is_count:
                edits = surround_inside(scope.source, part, "rd.devices.own_gpu_count(", ")")
                yield found(RULE, scope.source, part, "each of several processes has one GPU", edits)
    for scope in dict.fromkeys(copying.values()):
        first = min((call for call in copying if copying[call] is scope), key=place_of)
        reason = "it copies the model to several GPUs, past DDP; call the model itself, model(inputs)"
        yield found(RULE, scope.source, first, MESSAGE, refusal=reason, kind="copied-to-gpus")


def _is_gpu_count(analysis: Analysis, node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression is the machine's number of GPUs, and not a part of a call that counts them."""
    around = (node, *scope.source.ancestors(node))
    calls = [outer for outer in around if isinstance(outer, ast.Call)]
    if any(GPU_COUNT in analysis.called(call, scope) for call in calls) or scope.source.parents[node] in calls:
        return False
    return DEVICE_COUNT in analysis.named(node, scope)


def _asking(analysis: Analysis) -> Iterator[Finding]:
    """Yield the tests whether a model is a DataParallel, which of several processes none has."""
    message = "each of several processes has another wrapper"
    for node, scope in reached_nodes(analysis):
        model = asked_for(analysis, node, scope)
        if model is not None:
            (start, end), (first, last) = scope.source.span(node), scope.source.span(model)
            edits = [Edit(scope.source, start, first, "rd.model.is_data_parallel("), Edit(scope.source, last, end, ")")]
            yield found(RULE, scope.source, node, message, edits)


def _loading(analysis: Analysis, calls: list[tuple[ast.Call, Scope]], variables: set[Variable]) -> Iterator[Finding]:
    """Yield where a checkpoint is loaded into a model that is wrapped sometimes: its names may begin with module."""
    message = "the names of a checkpoint depend on how it was written"
    for call, scope in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "load_state_dict":
            continue
        state, model = argument_for(call, LOAD_STATE_DICT, "state_dict"), call.func.value
        if state is None or isinstance(model, ast.Call) or not variables_of(analysis, model, scope) & variables:
            continue
        if FITTING_KEYS not in analysis.named(state, scope):
            before = f"rd.model.fitting_keys({scope.source.segment(model)}, "
            yield found(RULE, scope.source, call, message, surround(scope.source, state, before, ")"))


def _run_inside(project: Project, variables: set[Variable]) -> Iterator[Finding]:
    """Yield `model.module(x)` in training, which goes past what averages the gradients."""
    for node, scope in project.in_batches:
        taken = node.func if isinstance(node, ast.Call) else None
        if not isinstance(taken, ast.Attribute) or taken.attr != "module":
            continue
        if variables_of(project.analysis, taken.value, scope) & variables:
            (_, inner_end), (_, end) = scope.source.span(taken.value), scope.source.span(taken)
            edits = [Edit(scope.source, inner_end, end, "")]
            yield found(RULE, scope.source, taken, "this goes past the wrapper of the model", edits)

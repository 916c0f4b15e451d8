"""RF210 hidden-state-carried: what a recurrent model remembers goes from one batch to the next."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import groupby

from retrofit.analysis.calls import last_name
from retrofit.analysis.edits import insert_before, replace, surround
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.after_setup import edit_after_setup
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.carried_state import carried_writes
from retrofit.training.data.sized.resized_views import ResizedView, resized_views
from retrofit.training.loops import LoopNode
from retrofit.training.losses.batch_statistics import kept_statistics, means_of_training
from retrofit.training.losses.first_batch import first_batch_writes
from retrofit.training.losses.gathering.kept_samples import KeptSamples, kept_samples
from retrofit.training.losses.gathering.model_states import is_model_state
from retrofit.training.losses.reductions.coupling import has_statistics_alone
from retrofit.training.losses.rows.carried_rows import carried_rows
from retrofit.training.losses.writes import Write
from retrofit.training.placement import first_statement
from retrofit.training.torch_api.runtime import KEEP_TOTAL_BATCH
from retrofit.training.torch_api.tensors import RESIZES

RULE = CATALOG["RF210"]
INVALID = [
    """\
hidden = torch.zeros(1, 8, 2)
for images, labels in loader:
    hidden = hidden.detach()
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    """\
state = None
for images, labels in loader:
    output, state = model(images, state)  # RF210
    criterion(output, labels).backward()
""",
    """\
hidden, cell = torch.zeros(2, 1, 8, 2)
for images, labels in loader:
    output, hidden, cell = model(images, hidden.detach(), cell)
    criterion(output, labels).backward()
""",
    """\
bank = torch.zeros(100, 2)
for images, labels in loader:
    output = model(images)
    criterion(output @ bank.T, labels).backward()
    with torch.no_grad():
        bank[labels] = output  # RF210
""",
    """\
inputs = torch.FloatTensor(8, 4)
for images, labels in loader:
    inputs.data.resize_as_(images).copy_(images)  # RF210
    criterion(model(inputs), labels).backward()
""",
    """\
size = 8
inputs = torch.FloatTensor(size, 4)
for images, labels in DataLoader(dataset, size, drop_last=True):
    inputs.data.resize_as_(images).copy_(images)
    criterion(model(inputs), labels).backward()
""",
    """\
inputs = torch.empty(8, 4)
for images, labels in loader:
    torch.mul(images, 2, out=inputs)  # RF210
    criterion(model(inputs), labels).backward()
""",
    """\
class Queued(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.register_buffer("queue", torch.randn(2, 16))

    def forward(self, x):
        z = self.layer(x)
        scores = z @ self.queue.clone().detach()
        self.queue[:, : len(z)] = z.detach().T  # RF210
        return scores


model = Queued()
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # own batch normalisation, however it is reached
    """\
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        if not self.training:
            return x - self.average
        self.average.mul_(0.9).add_(0.1 * x.mean(0).detach())  # RF210
        return x - x.mean(0)  # RF210


class Flow(nn.Sequential):
    def forward(self, x):
        for layer in self._modules.values():
            x = layer(x)
        return x


layers = []
layers += [nn.Linear(4, 4), Norm()]
model = Flow(*layers)
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
]
VALID = [
    # the statistics of each sample, and those of all processes
    """\
class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(4))

    def forward(self, x):
        self.mean = x.mean(1, keepdim=True)
        self.calls.mul_(0.9).add_(0.1 * x.detach().mean(0))
        return x - self.mean


class Synchronised(Norm):
    def forward(self, x):
        mean = rd.loss.batch_mean(x.mean(0))
        self.average.mul_(0.9).add_(0.1 * mean.detach())
        return x - (mean if self.training else self.average)


class Flow(nn.Sequential):
    def forward(self, x):
        for layer in self._modules.values():
            x = layer(x)
        return x


layers = []
layers += [nn.Linear(4, 4), nn.BatchNorm1d(4), Norm(), Synchronised()]
model = Flow(*layers)
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # of the size of each batch
    """\
inputs = torch.FloatTensor(8, 4)
for images, labels in loader:
    inputs.resize_as_(images).copy_(images)
    criterion(model(inputs), labels).backward()
""",
    # figures, and what is made for each batch
    """\
shown, counts = 0.0, torch.zeros(2)
for images, labels in loader:
    output = model(images)
    weight = torch.ones(len(images))
    weight[labels > 0] = 2.0
    loss = (weight * F.cross_entropy(output, labels, reduction="none")).mean()
    shown = 0.9 * shown + 0.1 * loss.item()
    counts[labels] += 1
    loss.backward()
""",
    """\
for images, labels in loader:
    hidden = torch.zeros(1, 8, 2)
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    # made for each batch
    """\
for images, labels in loader:
    state = None
    for step in range(4):
        output, state = model(images[step], state)
    criterion(output, labels).backward()
""",
    # drawn with the batch
    """\
for images, labels, hidden in loader:
    output, hidden = model(images, hidden)
    criterion(output, labels).backward()
""",
    # it does not go into the next batch
    """\
hidden = torch.zeros(1, 8, 2)
for images, labels in loader:
    output, last = model(images, hidden)
    criterion(output, labels).backward()
""",
]


def find(project: Project) -> Iterator[Finding]:
    if project.calls_any([KEEP_TOTAL_BATCH]):
        return
    names: set[str] = set()
    for finding, name in _hidden_states(project):
        names.add(name)
        yield finding
    for view in resized_views(project):
        if view.name not in names:
            names.add(view.name)
            yield _resized(view)
    carried = [write for write in carried_writes(project) if not has_statistics_alone(project, write)]
    for name, writes in groupby(sorted(carried, key=lambda write: write.name), lambda write: write.name):
        yield from _kept(project, name, list(writes)) if name not in names else ()
    yield from _set_at_first(project)
    for write in kept_statistics(project):
        if write.name in names:
            continue
        message = f"{write.name} keeps a statistic of each batch"
        means = means_of_training(project, write)
        if means:
            yield from _of_all_ranks(write, message, means)
            continue
        refusal = f"{write.name} is a statistic of the batches, and each process would keep that of its own samples"
        yield found(RULE, write.scope.source, write.node, message, refusal=refusal, kind="batch-statistics")


def _kept(project: Project, name: str, writes: list[Write]) -> Iterator[Finding]:
    """Yield what a variable keeps of each batch: each place, of which an option may leave out some."""
    message = f"{name} keeps what it is given of each batch"
    if any(is_model_state(project, write) for write in writes):
        for node, scope in dict.fromkeys((write.node, write.scope) for write in writes):
            frames = [(loop, frame) for path in project.paths for loop, frame in path.loops if frame.scope is scope]
            loop = next((loop for loop, frame in frames if loop in scope.source.ancestors(node)), None)
            yield _state_carried(project, name, node, loop, scope)
        return
    buffers = [write for write in writes if _is_buffer(project, write)]
    if not buffers and (kept := kept_samples(project, writes)):
        yield from _kept_of_all(kept, message)
        return
    for write in {write.node: write for write in writes}.values():
        source = write.scope.source
        if write in buffers:
            message = f"{name} is made once and filled from each batch"
            refusal = f"{name} keeps rows of the batches before where a batch is smaller than it"
            if isinstance(write.node, ast.Call) and ast.unparse(write.node.func) == f"{name}.copy_":
                refusal = f"{name} has the rows of the script's batch, and the batch of a process has fewer"
            yield found(RULE, source, write.node, message, refusal=refusal, kind="batch-buffer")
        else:
            refusal = f"{name} keeps samples of the batches before, and each process would put only its own there"
            yield found(RULE, source, write.node, message, refusal=refusal, kind="samples-kept")


def _kept_of_all(kept: list[KeptSamples], message: str) -> Iterator[Finding]:
    """Yield the samples that a queue or a memory bank gets, which become those of all ranks."""
    for each in kept:
        source = each.scope.source
        edits = [e for row in each.rows for e in surround(source, row, "rd.data.gather_batch(", ")")]
        edits += [e for size in each.sizes for e in surround(source, size, "rd.loss.batch_count(", ")")]
        if each.parameters:
            lines = [f"{name} = rd.data.gather_batch({name})" for name in each.parameters]
            edits.append(insert_before(source, first_statement(each.scope), lines))
        if not edits:
            continue
        yield found(RULE, source, each.node, message, edits, help="keys = rd.data.gather_batch(keys)")


def _of_all_ranks(write: Write, message: str, means: list[ast.expr]) -> Iterator[Finding]:
    """Yield the means of a module's own batch normalisation, which become those of the whole batch."""
    for mean in means:
        edits = surround(write.scope.source, mean, "rd.loss.batch_mean(", ")")
        yield found(RULE, write.scope.source, mean, message, edits, help="rd.loss.batch_mean(x.mean(0))")


def _set_at_first(project: Project) -> Iterator[Finding]:
    """Yield what modules compute at the first batch, from their part of it: each gets the whole of that batch."""
    seen: set[ast.AST] = set()
    for write in first_batch_writes(project):
        for batch in write.batches:
            if batch not in seen:
                seen.add(batch)
                message = f"{write.name} is set from this rank's part of the first batch"
                edits = surround(write.scope.source, batch, "rd.data.gather_batch(", ")")
                help = f"rd.data.gather_batch({batch.id}): all ranks compute it from the whole batch."
                yield found(RULE, write.scope.source, batch, message, edits, help=help)


def _resized(view: ResizedView) -> Finding:
    """Return the finding of a tensor that keeps its size, which it is to take from each batch instead."""
    source, name = view.scope.source, view.name
    message = f"{name} keeps the size that it was made with"
    if view.views:
        edits = [replace(source, each, name) for each in view.views]
        return found(RULE, source, view.call, message, edits, help=f"{name}.resize_as_(images), of the tensor itself.")
    refusal = f"{name}.data is another view of the tensor: {name} itself keeps its size and its old rows"
    return found(RULE, source, view.call, message, refusal=refusal, kind="batch-buffer")


def _is_buffer(project: Project, write: Write) -> bool:
    """Return whether what is written to was made for the batch size, or is filled as a whole by each batch."""
    node = write.node
    if isinstance(node, ast.Call) and any(keyword.arg == "out" for keyword in node.keywords):
        return True
    if isinstance(node, ast.Call) and last_name(node) in RESIZES:
        return True
    place = ast.parse(write.name, mode="eval").body
    if isinstance(place, ast.Name) and (bound := write.scope.find(place.id)):
        made = [(part, bound[0]) for b in bound[1] if b.value is not None for part in walk(b.value)]
        return any(each in project.batch_sizes for each in made)
    return False


def _hidden_states(project: Project) -> Iterator[tuple[Finding, str]]:
    called = {call.call for model in project.models for call in model.calls}
    seen: set[ast.AST] = set()
    for path in project.paths:
        loop, frame = path.loops[0]
        for call, name in _carried(loop, called):
            if call not in seen:
                seen.add(call)
                yield _state_carried(project, name, call, loop, frame.scope), name


def _state_carried(project: Project, name: str, node: ast.AST, loop: LoopNode | None, scope: Scope) -> Finding:
    """Return the finding of a state: where it has a row for each sample, each process keeps its rows of every batch."""
    message = f"{name} is what the model remembers of the batch before"
    is_plain = loop is not None and name.isidentifier() and not project.distribution.is_by_hand
    sizes = carried_rows(project, name, loop, scope) if is_plain and loop is not None else None
    if sizes is not None:
        edits = [edit_after_setup(project, "rd.data.keep_total_batch()")[2]]
        edits += [e for size in sizes for e in surround(scope.source, size, "rd.data.own_batch_size(", ")")]
        message += ", so each process keeps its rows of every batch, also without RETROFIT_BATCH=global"
        return found(RULE, scope.source, node, message, edits)
    refusal = f"{name} is carried from batch to batch, so batches cannot be split by samples"
    return found(RULE, scope.source, node, message, refusal=refusal, kind="carried-state")


def _carried(loop: LoopNode, called: set[ast.Call]) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls in `output, hidden = model(x, hidden)` where `hidden` comes from the last turn of the loop."""
    assignments = [node for node in walk(loop) if isinstance(node, ast.Assign)]
    for node in assignments:
        if node.value not in called or not isinstance(node.targets[0], ast.Tuple):
            continue
        assert isinstance(node.value, ast.Call)
        names = {part.id for part in node.targets[0].elts if isinstance(part, ast.Name)}
        for name in sorted(names & {given.id for given in node.value.args if isinstance(given, ast.Name)}):
            inside = [other for other in assignments if name in _bound(other)]
            if all(name in _read(other.value) for other in inside) and name not in _read_targets(loop):
                yield node.value, name


def _bound(node: ast.Assign) -> set[str]:
    return {part.id for target in node.targets for part in walk(target) if isinstance(part, ast.Name)}


def _read(node: ast.expr) -> set[str]:
    return {part.id for part in walk(node) if isinstance(part, ast.Name)}


def _read_targets(loop: LoopNode) -> set[str]:
    """Return the names that the loop itself, or one in it, gives a value."""
    loops = [node for node in walk(loop) if isinstance(node, (ast.For, ast.AsyncFor))]
    return {part.id for inner in loops for part in walk(inner.target) if isinstance(part, ast.Name)}

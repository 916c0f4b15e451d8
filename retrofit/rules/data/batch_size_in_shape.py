"""RF112 batch-size-in-shape: code that takes the batch to be as large as the batch size says."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator

from retrofit.analysis.calls import given_parameters, last_name
from retrofit.analysis.edits import Edit, surround
from retrofit.analysis.flow.bindings import bindings_of
from retrofit.analysis.flow.calls.graph import functions_reached
from retrofit.analysis.flow.calls.parameters import given_for
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.data.batch_values import BATCH
from retrofit.training.data.draws.draw import CALL
from retrofit.training.data.draws.slices.layout import layout_functions
from retrofit.training.data.loaders import TRAIN
from retrofit.training.data.made_before import made_before, of_losses, repeats_list
from retrofit.training.data.shards import drops_last
from retrofit.training.losses.gathering.gathered import gathering, is_of_whole_rows
from retrofit.training.model.gradients import has_gradients
from retrofit.training.torch_api.draws import DISTRIBUTIONS, SAMPLES
from retrofit.training.torch_api.runtime import OWN_SAMPLES
from retrofit.training.torch_api.tensors import DRAWN, FILLED, NEW, REPEATS, TENSOR_CLASSES, VIEWS

Place = tuple[ast.AST, Scope]
RULE = CATALOG["RF112"]
HELP_SKIPPED = (
    "rd.collectives.on_any_rank(len(images) < rd.data.micro_batch(batch_size)): all ranks leave out the same batches"
)
HELP_KEPT = "take the number of rows from the batch in hand, x.size(0), or use the first x.size(0) of them."
INVALID = [
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(batch_size, -1)), labels)
    loss.backward()
""",
    """\
batch_size = (yaml.safe_load(text) if text else json.load(file))["batch_size"]
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(batch_size, -1)), labels)
    loss.backward()
""",
    # an entry of the settings, and what is computed of two of them
    """\
settings = yaml.safe_load(text)
loader = rd.distribute_loader(DataLoader(dataset, settings["batch"], drop_last=True))
real = torch.ones(settings["batch"], 2)
for images, labels in loader:
    criterion(model(images), real).backward()
""",
    """\
import library


class Target:
    def __init__(self, rows):
        self.rows = torch.ones(rows, 2)


settings = library.settings(text)
loader = rd.distribute_loader(DataLoader(dataset, settings.batch // settings.parts, drop_last=True))
target = Target(settings.batch // settings.parts)
for images, labels in loader:
    criterion(model(images), target.rows).backward()
""",
    """\
loader = rd.distribute_loader(DataLoader(dataset, args.batch // args.parts, drop_last=True))
for images, labels in loader:
    criterion(model(images), torch.ones(int(args.batch / args.parts), 2)).backward()
""",
    """\
batch_size = 8
noise = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images, noise.sample((batch_size,))), labels)
    loss.backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    real = torch.ones(batch_size, 2)
    criterion(model(images), real).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for step, (images, labels) in enumerate(loader):
    steps = torch.tensor([step] * batch_size)
    criterion(model(images), steps).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    if len(images) < batch_size:
        continue
    criterion(model(images), labels).backward()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
noise = torch.FloatTensor(batch_size, 2)
for images, labels in loader:
    noise.normal_()
    criterion(model(images) + noise, labels).backward()
""",
    # the number of batches
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for step, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    print(step, len(range(0, len(dataset), batch_size)))
""",
    # given to a function, which is given another number elsewhere
    """\
def noise(rows):
    return torch.randn(rows, 2)


batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    criterion(model(images) + noise(batch_size), labels).backward()
shown = noise(3)
""",
    # which can be another number
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, drop_last=True))
for images, labels in loader:
    groups = 1 if whole else batch_size
    criterion(model(images.view(groups, -1)), labels).backward()
""",
    # the last batch may have one row in a process
    """\
for images, labels in DataLoader(dataset, 8):
    labels = labels.squeeze_()  # RF112
    criterion(torch.squeeze(model(images)), labels).backward()  # RF112
""",
]
VALID = [
    # an axis that is named, and batches that all have their full size
    """\
loader = DataLoader(dataset, 8, drop_last=True)
for images, labels in loader:
    criterion(model(images).squeeze(), labels.squeeze(1)).backward()
""",
    """\
for images, labels in DataLoader(dataset, 8):
    criterion(model(images).squeeze(-1), labels.squeeze(1)).backward()
    shown = labels.cpu().squeeze()
""",
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size, shuffle=True, drop_last=True))
for images, labels in loader:
    loss = criterion(model(images.view(rd.data.own_batch_size(batch_size), -1)), labels)
    loss.backward()
""",
    # the batch tells its own size
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    real = torch.ones(len(images), 2)
    criterion(model(images.view(images.size(0), -1)), real).backward()
""",
    # all processes leave out the same batches
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    if rd.collectives.on_any_rank(len(images) < rd.data.micro_batch(batch_size)):
        continue
    criterion(model(images), labels).backward()
""",
    # what is only shown
    """\
batch_size = 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
shown = torch.randn(batch_size, 3)
for images, labels in loader:
    criterion(model(images), labels).backward()
    print(model(shown))
""",
    # what only another call of the model is given
    """\
class Scaled(nn.Module):
    def forward(self, x):
        return model(2 * x)


batch_size, scaled = 8, Scaled()
shown = torch.randn(batch_size, 3)
for images, labels in rd.distribute_loader(DataLoader(dataset, batch_size)):
    criterion(scaled(images), labels).backward()
    print(scaled(shown))
""",
    # another entry, and another part of the batch size
    """\
settings = yaml.safe_load(text)
loader = rd.distribute_loader(DataLoader(dataset, settings["batch"] // settings["parts"]))
for images, labels in loader:
    criterion(model(images), torch.ones(len(images), settings["classes"], settings["batch"] // 3)).backward()
""",
    # another setting, which is 8 too
    """\
batch_size, classes = 8, 8
loader = rd.distribute_loader(DataLoader(dataset, batch_size))
for images, labels in loader:
    criterion(model(images), torch.ones(len(images), classes)).backward()
""",
    # in a distributed script this is the batch size of one process
    """\
batch_size = 8
loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset), drop_last=True)
for images, labels in loader:
    criterion(model(images.view(batch_size, -1)), labels).backward()
""",
]
SQUEEZED = "squeeze() takes the axis of the samples away, too, where a process has one row of a batch: the last one"
HELP_SQUEEZED = "name the axis, squeeze(1) or squeeze(-1), or leave the last batch out by drop_last=True"
LEAVES_LOSS = {"numpy", "cpu", "detach", "item"}
SPLIT = {"own_batch_size", "micro_batch", "batch_of_ranks", "whole_batch_size", "samples_per_step"}
SHAPED = VIEWS | REPEATS | FILLED | DRAWN | NEW | TENSOR_CLASSES | {"repeat", "fill", "range"}


def find(project: Project) -> Iterator[Finding]:
    if project.distribution.is_by_hand:  # there the batch size is that of one process
        return
    yield from _skipped(project)
    yield from _squeezed(project)
    drawn = {size for draw in project.draws.batches.values() for size, _ in draw.sizes}  # of all ranks, by RF115
    counted = gathering(project).sizes  # over all ranks, by RF303
    drawn |= set(_of_steps(project))
    made = ((node, scope) for node, scope in project.in_batches if isinstance(node, (ast.Call, ast.BinOp)))
    shaped = [place for place in made if _is_shaped(project, *place)]
    before = {(node, scope): is_in_model for node, scope, is_in_model in made_before(project)}
    settled = {*layout_functions(project), *_drawing(project)}
    for node, scope in (place for place in dict.fromkeys([*shaped, *before]) if place[1] not in settled):
        for part, where in [place for argument in _given(node) for place in _sizes_of(project, argument, scope)]:
            if part not in {*drawn, *counted} and not is_of_whole_rows(project, part, where):
                drawn.add(part)  # a variable may be read several times
                outer = where.source.parents[part]
                if isinstance(outer, ast.Call) and _name(outer) in SPLIT:
                    continue
                is_set_before = (node, scope) not in before and part not in project.nodes_in_batches
                if is_set_before or before.get((node, scope)) or _is_evaluated(project, node, scope, before):
                    message = f"with RETROFIT_BATCH=global a process has fewer samples than {ast.unparse(part)} rows"
                    yield found(RULE, where.source, part, message, help=HELP_KEPT)
                    continue
                if _counts_batches(scope.source.parents[node], node, part):
                    edits = surround(where.source, part, "rd.data.samples_per_step(", ")")
                    message = f"{ast.unparse(node)} has an entry for each batch of one process"
                else:
                    edits = surround(where.source, part, "rd.data.own_batch_size(", ")")
                    message = f"{ast.unparse(part)} is taken for the size of the batch in hand"
                yield found(RULE, where.source, part, message, edits)


def _drawing(project: Project) -> Iterator[Scope]:
    """Yield the functions that make a batch of as many samples as they are told: of all ranks, where RF115 says so."""
    drawn = [(draw.node, draw.scope) for draw in project.draws.batches.values() if draw.kind == CALL]
    for node, scope in project.in_batches:
        if isinstance(node, ast.Call) and project.analysis.called(node, scope) & OWN_SAMPLES:
            drawn += [(part, scope) for part in node.args]  # it is split already
    calls = [(node, scope) for node, scope in drawn if isinstance(node, ast.Call)]
    yield from (function.scope for function in functions_reached(project.analysis, calls))


def _is_only_shown(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a call draws, without gradients, what no loss is computed from: noise for pictures."""
    is_drawn = last_name(call) in DRAWN and call not in of_losses(project)
    return is_drawn and not has_gradients(project.analysis, scope, call)


def _counts_batches(outer: ast.AST, node: ast.AST, size: ast.expr) -> bool:
    """Return whether this is the number of batches, `len(range(0, samples, batch_size))`."""
    is_length = isinstance(outer, ast.Call) and _name(outer) == "len"
    return is_length and isinstance(node, ast.Call) and _name(node) == "range" and size in node.args[2:]


def _squeezed(project: Project) -> Iterator[Finding]:
    """Yield what loses the axis of the samples where a process has one row of a batch: `labels.squeeze()`."""
    if all(drops_last(project.analysis, loader) for loader in project.loaders if TRAIN in loader.roles):
        return
    for node, scope in project.in_batches:
        if not isinstance(node, ast.Call) or last_name(node) not in ("squeeze", "squeeze_") or node.keywords:
            continue
        is_torch = "torch.squeeze" in project.analysis.called(node, scope)
        if not isinstance(node.func, ast.Attribute) or len(node.args) != is_torch:
            continue
        value = node.args[0] if is_torch else node.func.value
        names = {last_name(part) for part in walk(value)}
        if BATCH in project.batch_values.sources_of(value, scope) and not names & LEAVES_LOSS:
            yield found(RULE, scope.source, node, SQUEEZED, help=HELP_SQUEEZED)


def _is_evaluated(project: Project, node: ast.AST, scope: Scope, before: Container[Place]) -> bool:
    """Return whether an evaluation, whose batches stay whole, uses the variable that is set to what is made before."""
    if (node, scope) not in before:
        return False
    statement = scope.source.statement(node)
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = {ast.unparse(target) for target in targets}
    loops = [evaluation.loop for evaluation in project.evaluations]
    return any(
        isinstance(part, (ast.Name, ast.Attribute)) and ast.unparse(part) in names
        for loop in loops
        if node not in walk(loop)
        for part in walk(loop)
    )


def _sizes_of(project: Project, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """Yield the batch sizes in an expression, as large as they are written: `batch // parts`, and not `batch`.

    Also what the steps alone give for a parameter in it, noise(batch_size), where there is noise(16), and what a
    variable is set to in a step, where it can be another number: `groups = 1 if whole else batch_size`.
    """
    either = [place for place in _either(project, node, scope) if place in project.batch_sizes]
    if (node, scope) in project.batch_sizes:
        yield node, scope  # type: ignore[misc]
    elif either:
        yield from either
    elif isinstance(node, ast.Name) and isinstance(scope.node, FUNCTIONS) and node.id in given_parameters(scope):
        for given, where, _ in given_for(project.analysis, node.id, scope, (), project.nodes_in_batches):
            if given in project.nodes_in_batches and (given, where) in project.batch_sizes:
                yield given, where
    else:
        for part in ast.iter_child_nodes(node):
            yield from _sizes_of(project, part, scope)


def _either(project: Project, node: ast.AST, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """Return what a variable is set to, each side of a condition by itself."""
    bindings = bindings_of(project.analysis, node, scope) if isinstance(node, ast.Name) else []
    waiting = [(binding.value, where) for binding, where in bindings if binding.kind == "value" and not binding.path]
    found: list[tuple[ast.expr, Scope]] = []
    while waiting:
        value, where = waiting.pop()
        if isinstance(value, ast.IfExp):
            waiting += [(value.body, where), (value.orelse, where)]
        elif value is not None:
            found.append((value, where))
    return found


def _given(node: ast.Call | ast.BinOp) -> list[ast.expr]:
    """Return what the shape of something is written in: arguments, the factors of `[0] * batch_size`."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _of_steps(project: Project) -> Iterator[ast.expr]:
    """Yield what the number of steps of a loop is divided by, `range(len(data) // batch_size)`: no size of a batch."""
    for loop in (loop for path in project.paths for loop, _ in path.loops if isinstance(loop, ast.For)):
        for part in walk(loop.iter):
            if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Div, ast.FloorDiv)):
                yield from (inner for inner in walk(part.right) if isinstance(inner, ast.expr))


def _skipped(project: Project) -> Iterator[Finding]:
    for node, part, scope in incomplete_batches(project):
        start, end = scope.source.span(part)
        edits = [
            *surround(scope.source, node.test, "rd.collectives.on_any_rank(", ")"),
            Edit(scope.source, start, end, f"rd.data.micro_batch({scope.source.segment(part)})"),
        ]
        message = "processes may differ in which batch is a whole one"
        yield found(RULE, scope.source, node.test, message, edits, help=HELP_SKIPPED)


def incomplete_batches(project: Project) -> Iterator[tuple[ast.If, ast.expr, Scope]]:
    """Yield `if len(images) < batch_size: continue`: of the last batch one process may have less than another."""
    loops = {path.loops[0][0] for path in project.paths}
    for node, scope in project.in_batches:
        if not isinstance(node, ast.If) or scope.source.parents[node] not in loops or not _compares(node.test):
            continue
        assert isinstance(node.test, ast.Compare)
        for part in (node.test.left, *node.test.comparators):
            if (part, scope) in project.batch_sizes and isinstance(node.body[-1], (ast.Continue, ast.Break)):
                yield node, part, scope


def _compares(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.NotEq, ast.Lt, ast.Gt))


def _is_shaped(project: Project, node: ast.AST, scope: Scope) -> bool:
    """Return whether something is given the shape of what it makes: a call, or the product `[0] * batch_size`.

    Also by a distribution, `noise.sample((8,))`, but for noise of what is only shown.
    """
    if not isinstance(node, ast.Call):
        return repeats_list(node)
    names = project.analysis.called(node, scope)
    is_sample = any(name.startswith(DISTRIBUTIONS) and name.rpartition(".")[2] in SAMPLES for name in names)
    return (is_sample or _name(node) in SHAPED) and not _is_only_shown(project, node, scope)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")

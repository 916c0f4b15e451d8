"""RF003 not-convertible: a project whose training the rules cannot make distributed and stay right."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator

from retrofit.analysis.files.source import Source
from retrofit.analysis.flow.reachability import calls_named, reached_nodes
from retrofit.analysis.flow.sources import Origin, origins, sources
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Member, Result
from retrofit.rules.catalog import CATALOG
from retrofit.rules.edits.at_run_time import is_function, refused_at_run_time
from retrofit.rules.finding import Finding, found
from retrofit.rules.refusals.kinds import KINDS
from retrofit.training import Project
from retrofit.training.data.drawn import loaders_in
from retrofit.training.data.draws.unknown_iterators import unknown_iterators
from retrofit.training.data.loaders import TRAIN, draws_from
from retrofit.training.data.shards import single_samples
from retrofit.training.distributed.frameworks import find_framework, library_trainings
from retrofit.training.loops import closure_steps
from retrofit.training.losses.flow import loss_parts
from retrofit.training.model.gradients import has_gradients, may_switch_on
from retrofit.training.model.indirect.trained_copies import trained_copies
from retrofit.training.model.models import Call
from retrofit.training.model.renormalised import renormalised
from retrofit.training.optimizer.hooked_steps import hooked_steps
from retrofit.training.optimizer.parameter_gradients import parameter_gradients
from retrofit.training.steps.in_comprehensions import training_comprehensions
from retrofit.training.steps.skipped_steps import batches_of_one, early_returns, incomplete_batches, skips
from retrofit.training.steps.steps_in_batches import are_flattened, steps_in_batches
from retrofit.training.torch_api.data import SHARDING_SAMPLERS
from retrofit.training.torch_api.distributed import JOIN_GROUP, SPAWNS
from retrofit.training.torch_api.frameworks import LOOP_PACKAGES
from retrofit.training.torch_api.launch import INSTANTIATES
from retrofit.training.torch_api.modules import DDP
from retrofit.training.torch_api.optimizers import REPEATED_EVALUATION

RULE = CATALOG["RF003"]
INVALID = [
    """\
optimizer = optim.LBFGS(model.parameters())
""",
    """\
table = nn.Embedding(4, 2, max_norm=1.0)  # RF003
for images, labels in loader:
    criterion(model(images) + table(labels), labels).backward()
""",
    """\
from hydra.utils import instantiate

criterion = instantiate(options.loss)
for images, labels in loader:
    loss = criterion(model(images), labels)  # RF003
    loss.backward()
""",
    """\
for images, labels in loader:
    if images.sum() > 0:  # RF003
        continue
    criterion(model(images), labels).backward()
""",
    # the weights of the ranks would become different
    """\
for images, labels in loader:
    errors = F.cross_entropy(model(images), labels, reduction="none")
    errors.mean().backward()
    if errors.max() < 9:  # RF003
        optimizer.step()
""",
    """\
batches = torch.randn(10, 8, 4)
for images in batches:
    model(images).sum().backward()  # RF003
    optimizer.step()
""",
    """\
batches = iter(loader)
for step in range(10):
    images, labels = batches.next()  # RF003
    criterion(model(images), labels).backward()
""",
    """\
class Picture(torch.utils.data.Dataset):
    def __len__(self):
        return 1


class Points(torch.utils.data.Dataset):
    def __init__(self, picture):
        self.picture = picture

    def __len__(self):
        return len(self.picture)


loader = DataLoader(Points(Picture()), 1)  # RF003
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    """\
model = DDP(Net())  # RF003
""",
    """\
for images, labels in loader:

    def closure():
        loss = criterion(model(images), labels)
        loss.backward()
        return loss

    optimizer.step(closure)  # RF003
""",
]
VALID = [
    """\
optimizer = optim.SGD(model.parameters(), lr=rd.scaled_lr(0.1))
""",
    # so many draws in an epoch
    """\
class Draws(torch.utils.data.Dataset):
    def __len__(self):
        return 1 if short else 1000


loader = rd.distribute_loader(DataLoader(Draws(), 8))
for images, labels in loader:
    criterion(model(images), labels).backward()
""",
    # what a configuration names is given to a loss that is written out
    """\
import hydra

model = hydra.utils.instantiate(options.model)
optimizer = hydra.utils.instantiate(options.optimizer, params=model.parameters())
for images, labels in loader:
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
""",
    # all processes leave out the same batch
    """\
for i, (images, labels) in enumerate(loader):
    if i == 2:
        continue
    criterion(model(images), labels).backward()
""",
    # every few batches, and by gradients, which are the same on all ranks
    """\
for i, (images, labels) in enumerate(loader):
    criterion(model(images), labels).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if torch.isfinite(norm) and (i + 1) % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
    # RF401 reduces the loss before it decides
    """\
for images, labels in loader:
    loss = criterion(model(images), labels)
    if loss.item() == 0:
        continue
    loss.backward()
""",
    # a loader without a loop over it
    """\
batches = iter(loader)
for step in range(10):
    images, labels = next(batches)
    criterion(model(images), labels).backward()
""",
]
DEFINING = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.Expr)
DISTRIBUTED = DDP | SHARDING_SAMPLERS | SPAWNS | {JOIN_GROUP, "torch.multiprocessing.Process"}


def find(project: Project) -> Iterator[Finding]:
    for node, source, text, kind in _reasons(project):
        message = "this training cannot be split across ranks"
        finding = refused_at_run_time(project, found(RULE, source, node, message, refusal=text, kind=kind))
        yield finding
        if finding.refusal and not KINDS[kind].assumption:
            return


def _removed_next(project: Project) -> Iterator[tuple[ast.AST, Source, str]]:
    """Yield `batches.next()`, which runs on no torch that this kit supports."""
    for node, scope in project.in_batches:
        is_next = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "next"
        if is_next and loaders_in(project.analysis, node.func.value, scope):  # type: ignore[attr-defined]
            batches = ast.unparse(node.func.value)  # type: ignore[attr-defined]
            text = f"iterators of a DataLoader have no method next() since torch 1.13; write next({batches})"
            yield node, scope.source, text


def _configured_losses(project: Project) -> Iterator[tuple[ast.AST, Source]]:
    """Yield the calls in a training loss of what a configuration names."""
    for path in project.paths:
        for node, scope in loss_parts(project.analysis, path):
            values = project.analysis.evaluate(node.func, scope) if isinstance(node, ast.Call) else ()
            owners = (value.base if isinstance(value, Member) else value for value in values)
            if any(isinstance(owner, Result) and owner.builder in INSTANTIATES for owner in owners):
                yield node, scope.source


def _repeated_evaluation(project: Project) -> Iterator[tuple[ast.AST, Source]]:
    """Yield the calls of LBFGS, and its name where that is one of several that are called."""
    analysis = project.analysis
    for node, scope in calls_named(analysis, REPEATED_EVALUATION):
        if len(analysis.evaluate(node.func, scope)) == 1:
            yield node, scope.source
            continue
        parts = origins(analysis, [Origin(node.func, scope)])
        names = [part for part in parts if is_function(part.node) and not list(sources(analysis, part))]
        named = [name for name in names if _is_only(analysis.named(name.node, name.scope))]  # type: ignore[arg-type]
        yield from ((name.node, name.scope.source) for name in named)
        yield from () if named else [(node, scope.source)]


def _is_only(names: set[str]) -> bool:
    return bool(names) and names <= REPEATED_EVALUATION


def _own_updates(project: Project) -> Iterator[tuple[ast.AST, Source, str, str]]:
    """Yield what changes parameters by gradients, or by values of hooks, that DDP does not average."""
    analysis = project.analysis
    shown = {output.call for output in project.outputs}
    for node, scope in parameter_gradients(analysis, project.in_loops, shown):
        text = "the training uses gradients of parameters that are taken past backward(), of one process's samples"
        yield node, scope.source, text, "parameter-gradients"
    for node, scope, name in library_trainings(analysis):
        text = f"{name} trains a network whole, and writes its files, in every process"
        yield node, scope.source, text, "library-training"
    for node, scope in trained_copies(analysis, project.optimizers, project.models):
        text = "what is trained is a copy of the model, whose gradients nothing averages over the processes"
        yield node, scope.source, text, "trained-copy"
    for node, scope in hooked_steps(analysis, reached_nodes(analysis), project.in_batches):
        text = "hooks on layers keep values of one process's samples, and parameters are updated by these"
        yield node, scope.source, text, "hooked-step"


def _reasons(project: Project) -> Iterator[tuple[ast.AST, Source, str, str]]:
    entry = project.entry
    used = find_framework(project.analysis)
    if used is not None:
        yield used.call, used.scope.source, used.advice(shlex.quote(entry.name)), "framework"
    first = entry.tree.body[0] if entry.tree.body else ast.Pass(lineno=1, col_offset=0, end_lineno=1, end_col_offset=0)
    for call, scope in calls_named(project.analysis, DISTRIBUTED):
        for name in project.analysis.called(call, scope) & DISTRIBUTED:
            text = f"it is distributed already ({name.rpartition('.')[2]})"
            yield call, scope.source, text, "distributed-already"
    for node, source in _repeated_evaluation(project):
        text = "LBFGS evaluates the loss several times per step, which ranks would do unequally"
        yield node, source, text, "repeated-evaluation"
    for node in entry.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            for framework in (LOOP_PACKAGES.get(name.partition(".")[0]) for name in names):
                if framework and not project.paths:
                    text = f"{framework} owns the training loop; it distributes by its own settings"
                    yield node, entry, text, "framework"
    if not project.paths:
        yield first, entry, "no loop with a backward call was found in this script or in what it imports", "no-training"
        return
    method = _method_without_object(project)
    if method is not None:
        text = "what trains is a method of a class, of which this script makes no object"
        yield method.node, method.source, text, "no-training"
        return
    frame = project.paths[0].frames[0]
    if any(not draws_from(project.loaders, path) for path in project.paths):
        removed = sorted(_removed_next(project), key=lambda reason: reason[0].lineno)  # type: ignore[attr-defined]
        if removed:
            yield (*removed[0], "removed-next")
        inside = list(training_comprehensions(project))
        for node, scope in inside:
            yield node, scope.source, "a comprehension goes through the loader and trains", "training-comprehension"
        for node, scope, problem in project.draws.problems if not inside else ():
            text = f"no DataLoader is found that the training loop draws from, and {problem}"
            yield node, scope.source, text, "no-loader"
    for drawn, scope in unknown_iterators(project):
        text = (
            f"whether {ast.unparse(drawn)} gives every process the same samples cannot be told; give it a DataLoader, "
            "or split what it gives by the rank"
        )
        yield drawn, scope.source, text, "unknown-iterator"
    steps = {site.call for sites in closure_steps(project.analysis).values() for site in sites}
    for frame in (frame for path in project.paths for frame in path.frames[1:]):
        if frame.node in steps:
            text = (
                "the optimizer's step runs the closure itself, as often as it likes; if it does so once, write "
                "`loss = closure()`, and step() without an argument after it"
            )
            yield frame.node, frame.scope.source, text, "closure-step"
    fixed = {node for node, _, _ in (*incomplete_batches(project), *batches_of_one(project))}
    left_out = [s for path in project.paths for s in (*skips(project.analysis, path), *early_returns(project, path))]
    for skip in dict.fromkeys(left_out):
        if not skip.losses and skip.node not in fixed:
            text = (
                "what is in the batch decides whether a step is made, and each process would decide by its own samples"
            )
            yield skip.node, skip.scope.source, text, "skipped-by-batch"
    for loop, batch, scope in dict.fromkeys(steps_in_batches(project)):
        if are_flattened(project, loop, batch, scope):
            continue
        text = f"each entry of {ast.unparse(batch)}, a batch of the loader, has a step, and processes may have "
        text += "more or fewer of them"
        yield loop, scope.source, text, "steps-in-batch"
    trained = [loader for loader in project.loaders if TRAIN in loader.roles]
    for node, scope in (place for loader in trained for place in single_samples(project.analysis, loader)):
        text = "the data set has one sample, as its __len__ says, of which no rank can have a part"
        yield node, scope.source, text, "one-sample"
    yield from _own_updates(project)
    for node, scope in renormalised(project):
        text = "max_norm scales the rows that are looked up in place, and each rank looks up others"
        yield node, scope.source, text, "renormalised-embedding"
    for node, source in _configured_losses(project):
        text = "the loss is of a class that a configuration names, so it cannot be told whether it is a mean"
        yield node, source, text, "configured-loss"
    if not project.models:
        yield frame.node, frame.scope.source, "which model is trained could not be found out", "no-model"
    elif (evaluated := _only_evaluated(project)) is not None:
        text = (
            "the models that are known run without gradients only, so the one that is trained has another name; let "
            "the training call the model by the name that the optimizer is given"
        )
        yield evaluated.call, evaluated.scope.source, text, "no-model"


def _method_without_object(project: Project) -> Scope | None:
    """Return the method in which a training begins, where all do, of classes that nothing names or can make.

    A script that runs anything may make an object by a name that it reads: it is not refused.
    """
    if any(not isinstance(part, DEFINING) or _runs(project, part) for part in project.entry.tree.body):
        return None
    methods = [path.frames[-1].scope for path in project.paths]
    classes = [found.node for method in methods if (found := method.enclosing_class()) is not None]
    if len(classes) < len(methods):
        return None
    nodes = (node for source in project.sources for node in source.nodes)
    names = {node.id if isinstance(node, ast.Name) else getattr(node, "attr", "") for node in nodes}
    return methods[0] if names.isdisjoint(getattr(node, "name", "") for node in classes) else None


def _runs(project: Project, statement: ast.stmt) -> bool:
    """Return whether a statement of the script runs a function of the project: main()."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    module = project.analysis.module_scopes[project.entry]
    return isinstance(call, ast.Call) and bool(project.analysis.functions_called(call, module))


def _only_evaluated(project: Project) -> Call | None:
    """Return a call of the models where none of their calls has gradients."""
    if any(model.own for model in project.models):
        return None
    calls = [call for model in project.models for call in model.calls]
    for call in calls:
        place = project.analysis, call.scope, call.call
        if has_gradients(*place) or may_switch_on(*place):
            return None
    return calls[0] if calls else None

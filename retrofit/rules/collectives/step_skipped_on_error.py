"""RF405 step-skipped-on-error: a process whose step fails continues with its next batch."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from retrofit.analysis.edits import Edit, indent_step, indentation, insert_before
from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.python_api import EXITS
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.rules.catalog import CATALOG
from retrofit.rules.finding import Finding, found
from retrofit.training import Project
from retrofit.training.distributed.ranks.rank_guards import asks_for_group
from retrofit.training.loops import LOOPS, Path
from retrofit.training.placement import first_statement
from retrofit.training.steps.skipped_steps import statements_of

RULE = CATALOG["RF405"]
# Those that do not come from what is in a batch, or end the training of all: the same for every process.
COMMON = {
    "StopIteration", "KeyboardInterrupt", "SystemExit", "GeneratorExit", "ImportError", "ModuleNotFoundError",
    "AttributeError", "TypeError", "NotImplementedError", "NameError",
}  # fmt: skip
# Of a feature that the data or the model lack, for which the `except` runs the model in another way.
MISSING = "(AttributeError, KeyError, TypeError)"
BROAD = {"Exception", "BaseException"}
SUPPRESS = "contextlib.suppress"
INVALID = [
    """\
for images, labels in loader:
    try:
        loss = criterion(model(images), labels)
        loss.backward()
    except RuntimeError:
        continue
    optimizer.step()
""",
    """\
def step(images, labels):
    criterion(model(images), labels).backward()
    optimizer.step()


for images, labels in loader:
    try:
        step(images, labels)
    except (RuntimeError, ValueError):  # RF405
        print("skipped")
""",
    """\
from contextlib import suppress

for images, labels in loader:
    with suppress(RuntimeError):  # RF405
        criterion(model(images), labels).backward()
""",
    """\
for images, labels in loader:
    try:
        images = images.float()
    except ValueError:  # RF405
        continue
    criterion(model(images), labels).backward()
""",
]
VALID = [
    """\
for images, labels in loader:
    try:
        loss = criterion(model(images), labels)
        loss.backward()
    except RuntimeError:
        if rd.get_world_size() > 1:
            raise
        continue
    optimizer.step()
""",
    # the step is made all the same
    """\
for images, labels in loader:
    try:
        images = images.float()
    except ValueError:
        images = images * 1.0
    criterion(model(images), labels).backward()
""",
    # it ends the training
    """\
try:
    for images, labels in loader:
        criterion(model(images), labels).backward()
except RuntimeError:
    print("ended")
""",
    # the error ends this process too, or it is the same one on all processes
    """\
for images, labels in loader:
    try:
        criterion(model(images), labels).backward()
    except RuntimeError as error:
        if "memory" in str(error):
            exit(1)
        else:
            raise error
    except (TypeError, AttributeError):
        model(images).mean().backward()
    except KeyboardInterrupt:
        break
    finally:
        print("done")
""",
    # one of the losses always raises it, and the step is made in another way
    """\
class Plain:
    def __call__(self, output, labels):
        return criterion(output, labels)


class Adversarial:
    def __call__(self, *args):
        \"\"\"Refuse to be called.\"\"\"
        raise ValueError("call step()")

    def step(self, images, labels):
        criterion(model(images), labels).backward()
        optimizer.step()


loss_of = {"plain": Plain, "adversarial": Adversarial}[name]()
for images, labels in loader:
    try:
        loss_of(model(images), labels).backward()
        optimizer.step()
    except ValueError:
        loss_of.step(images, labels)
""",
    # the processes tell each other
    """\
for images, labels in loader:
    try:
        criterion(model(images), labels).backward()
    except RuntimeError:
        failed = torch.ones(1)
        dist.all_reduce(failed)
""",
]


def find(project: Project) -> Iterator[Finding]:
    runs = {call.call for model in project.models for call in model.calls}
    steps = {frame.node for path in project.paths for frame in path.frames}
    seen: set[ast.AST] = set()
    for path in project.paths:
        for caught in _caught_errors(project.analysis, path, runs):
            if caught.node in seen or _steps_otherwise(project.analysis, caught, steps):
                continue
            seen.add(caught.node)
            source = caught.scope.source
            message = "a process that fails here leaves its step out, and the others wait for it"
            if isinstance(caught.node, ast.With):
                refusal = "errors in a training step are suppressed, so some processes would wait for others"
                yield found(RULE, source, caught.node, message, refusal=refusal, kind="suppressed-errors")
            else:
                edits = list(_raising(source, caught.node, caught.is_run_again))
                yield found(RULE, source, caught.node, message, edits)


def _raising(source: Source, handler: ast.ExceptHandler, is_run_again: bool) -> Iterator[Edit]:
    """Yield the edits that hand the error on where there are other processes."""
    test = "if rd.get_world_size() > 1:"
    if is_run_again and _is_broad(handler):
        name = handler.name or "rd_error"
        test = f"{test[:-1]} and not isinstance({name}, {MISSING}):"
        if handler.name is None:
            start = source.span(handler)[0]
            end = source.span(handler.type)[1] if handler.type else start + len("except")
            kind = "" if handler.type else " BaseException"
            yield Edit(source, end, end, f"{kind} as {name}")
    yield _first_in(source, handler, test)


def _first_in(source: Source, handler: ast.ExceptHandler, test: str) -> Edit:
    first = handler.body[0]
    step = indent_step(source)
    lines = [test, f"{step}raise  # the others wait for this step"]
    start, _ = source.span(first)
    header = source.text[:start].rstrip()
    if source.line_of(len(header)) != source.line_of(start):
        return insert_before(source, first, lines)
    indent = indentation(source, source.parents[handler]) + step  # type: ignore[arg-type]
    text = "".join(f"{source.newline}{indent}{line}" for line in (*lines, ""))
    return Edit(source, len(header), start, text)


@dataclass(frozen=True)
class _Caught:
    """An `except` after which the training continues, or a `with suppress(...)`."""

    node: ast.ExceptHandler | ast.With
    scope: Scope
    is_run_again: bool = False  # the `except` runs the model, as the `try` does


def _caught_errors(analysis: Analysis, path: Path, runs: Collection[ast.AST]) -> Iterator[_Caught]:
    """Yield what catches errors in the steps of a path: around the backward call, or around the calls `runs` before."""
    yield from _around(analysis, path)
    loop, frame = path.loops[0]
    around = set(frame.scope.source.ancestors(frame.node))
    for statement in statements_of(loop):
        if statement in around or not isinstance(statement, ast.Try):
            continue
        is_run = _has_any(statement.body, runs)
        for handler in statement.handlers:
            if (is_run or _leaves_out(handler)) and _continues(analysis, handler, frame.scope):
                yield _Caught(handler, frame.scope, is_run and _has_any(handler.body, runs))


def _steps_otherwise(analysis: Analysis, caught: _Caught, steps: Collection[ast.AST]) -> bool:
    """Return whether the `except` makes the step for objects of which a method does nothing but raise this error."""
    attempt = caught.scope.source.parents[caught.node]
    if not isinstance(caught.node, ast.ExceptHandler) or not isinstance(attempt, ast.Try):
        return False
    kinds = {ast.unparse(kind) for kind in _kinds(caught.node)}
    if not _has_any(caught.node.body, steps) or _leaves_out(caught.node):
        return False
    calls = (part for statement in attempt.body for part in walk(statement) if isinstance(part, ast.Call))
    functions = (function for call in calls for function in analysis.functions_called(call, caught.scope))
    return any(_only_raises(function.scope, kinds) for function in functions)


def _only_raises(function: Scope, kinds: Collection[str]) -> bool:
    first = first_statement(function) if not isinstance(function.node, ast.Lambda) else None
    error = first.exc if isinstance(first, ast.Raise) else None
    return error is not None and ast.unparse(error.func if isinstance(error, ast.Call) else error) in kinds


def _kinds(handler: ast.ExceptHandler) -> list[ast.expr]:
    return handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []


def _has_any(block: list[ast.stmt], nodes: Collection[ast.AST]) -> bool:
    return any(part in nodes for statement in block for part in walk(statement))


def _is_broad(handler: ast.ExceptHandler) -> bool:
    return handler.type is None or ast.unparse(handler.type) in BROAD


def _around(analysis: Analysis, path: Path) -> Iterator[_Caught]:
    """Yield what is around a backward call in the outermost loop; what is around that loop ends the training."""
    num_loops = len(path.loops)
    for frame in path.frames:
        inner: ast.AST = frame.node
        for node in frame.scope.source.ancestors(frame.node):
            num_loops -= node in frame.loops
            if node is frame.scope.node or not num_loops:
                break
            yield from _catching(analysis, node, inner, frame.scope)
            inner = node


def _catching(analysis: Analysis, node: ast.AST, inner: ast.AST, scope: Scope) -> Iterator[_Caught]:
    if isinstance(node, ast.Try) and inner in node.body:
        yield from (_Caught(handler, scope) for handler in node.handlers if _continues(analysis, handler, scope))
    elif isinstance(node, ast.With):
        calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
        for call in calls:
            if SUPPRESS in analysis.called(call, scope) and not _are_common(call.args):
                yield _Caught(node, scope)


def _continues(analysis: Analysis, handler: ast.ExceptHandler, scope: Scope) -> bool:
    """Return whether the training continues after an `except`, without a look at the other processes."""
    kinds = _kinds(handler)
    if (kinds and _are_common(kinds)) or _ends(handler.body):
        return False
    parts = [part for statement in handler.body for part in walk(statement)]
    if any(isinstance(part, ast.If) and asks_for_group(part.test) for part in parts):
        return False
    names = {name for part in parts if isinstance(part, ast.Call) for name in analysis.called(part, scope)}
    return not any(name.startswith(("torch.distributed.", "retrofit.distributed.")) for name in names)


def _are_common(kinds: list[ast.expr]) -> bool:
    return all(ast.unparse(kind).rpartition(".")[2] in COMMON for kind in kinds)


def _leaves_out(handler: ast.ExceptHandler) -> bool:
    """Return whether an `except` continues with the next batch, or ends the loop over the batches."""
    waiting: list[ast.AST] = list(handler.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Continue, ast.Break, ast.Return)):
            return True
        if not isinstance(node, LOOPS):
            waiting += children(node)
    return False


def _ends(block: list[ast.stmt]) -> bool:
    """Return whether a block ends the process, or hands the error on, whatever it tests."""
    last = block[-1]
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body) and _ends(last.orelse)
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in EXITS
    return isinstance(last, ast.Raise)

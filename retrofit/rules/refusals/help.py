"""Help with a refusal: what to do, a change of the lines of the script that makes it convertible, an example."""

from __future__ import annotations

import ast
import difflib
import io
from collections.abc import Callable, Iterator
from itertools import islice

from retrofit.analysis.calls import argument_for, last_name
from retrofit.analysis.edits import Edit, apply_edits, indent_step, insert_after, insert_before, replace
from retrofit.analysis.files.source import Source
from retrofit.analysis.nodes import walk
from retrofit.training import Project
from retrofit.training.data.loaders import TRAIN
from retrofit.training.torch_api.modules import DATA_PARALLEL_PARAMETERS

from ..finding import Finding
from .kinds import KINDS

MOST_LINES = 15  # of a change that is shown
Patch = Callable[[Project, Finding], list[Edit]]


def help_lines(project: Project, finding: Finding) -> Iterator[str]:
    """Yield what to do about a refusal, to be shown after it; nothing for a kind that is not known."""
    kind = KINDS.get(finding.kind)
    if kind is None:
        return
    yield f"    what to do: {kind.remedy}"
    edits = patch_for(project, finding)
    if edits:
        yield "    this change makes it convertible:"
        yield from (f"      {line}" for line in _diff(edits))
    if kind.assumption and finding.refusal:
        yield f"    convert --prove tries it under the assumption that {kind.assumption}"
    for name in kind.examples:
        yield f"    a worked example, before and after: retrofit rules {name}"


def patch_for(project: Project, finding: Finding) -> list[Edit]:
    """Return a change of the script after which it is not refused for this reason; nothing where none is known."""
    make = PATCHES.get(finding.kind)
    return make(project, finding) if make and finding.node is not None and finding.source is not None else []


def _diff(edits: list[Edit]) -> Iterator[str]:
    for source in dict.fromkeys(edit.source for edit in edits):
        after = apply_edits(source, edits)
        old, new = (io.StringIO(text, newline=None).read().split("\n") for text in (source.text, after))
        lines = list(difflib.unified_diff(old, new, n=0, lineterm=""))[2:]
        yield f"{source.name}:"
        yield from islice((line for line in lines if not line.startswith("@@")), MOST_LINES)


def _next(project: Project, finding: Finding) -> list[Edit]:
    """Write `next(batches)` for `batches.next()`."""
    node, source = finding.node, finding.source
    assert source is not None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return []
    return [replace(source, node, f"next({source.segment(node.func.value)})")]


def _for_statement(project: Project, finding: Finding) -> list[Edit]:
    """Write a for statement that fills a list, before the statement with the comprehension that trains."""
    node, source = finding.node, finding.source
    assert source is not None
    if not isinstance(node, (ast.ListComp, ast.GeneratorExp)) or len(node.generators) != 1:
        return []
    part, name, step = node.generators[0], _free_name(source, "results"), indent_step(source)
    tests = [f"if {source.segment(test)}:" for test in part.ifs]
    head = [f"for {source.segment(part.target)} in {source.segment(part.iter)}:", *tests]
    steps = [*head, f"{name}.append({source.segment(node.elt)})"]
    if any("\n" in line for line in steps):
        return []
    lines = [f"{name} = []", *(f"{step * number}{line}" for number, line in enumerate(steps))]
    given = f"({name})" if source.segment(node).startswith("(") else name  # sum(step(x) for x in loader)
    return [insert_before(source, source.statement(node), lines), replace(source, node, given)]


def _closure(project: Project, finding: Finding) -> list[Edit]:
    """Write `loss = closure()` and `optimizer.step()` for `loss = optimizer.step(closure)`."""
    node, source = finding.node, finding.source
    assert source is not None and node is not None
    statement = source.statement(node)
    if not isinstance(node, ast.Call) or len(node.args) != 1 or not isinstance(statement, (ast.Assign, ast.Expr)):
        return []
    if statement.value is not node:
        return []
    target = source.segment(statement.targets[0]) if isinstance(statement, ast.Assign) else "loss"
    closure, step = source.segment(node.args[0]), source.segment(node.func)
    later = insert_after(source, statement, [f"{step}()"])
    return [replace(source, statement, f"{target} = {closure}()"), later]


def _suppressed(project: Project, finding: Finding) -> list[Edit]:
    """Take `with suppress(...):` away from around a step."""
    node, source = finding.node, finding.source
    assert source is not None
    if not isinstance(node, ast.With) or len(node.items) != 1 or node.items[0].optional_vars is not None:
        return []
    first, last = node.body[0].lineno, node.body[-1].end_lineno or node.body[-1].lineno
    starts, step = source.line_starts, len(indent_step(source))
    edits = [Edit(source, starts[node.lineno - 1], starts[first - 1], "")]
    for start in (starts[line - 1] for line in range(first, last + 1)):
        if source.text[start : start + step].isspace() and "\n" not in source.text[start : start + step]:
            edits.append(Edit(source, start, start + step, ""))
    return edits if first > node.lineno else []


def _model_output(project: Project, finding: Finding) -> list[Edit]:
    """Put the output of the model into a variable before the statement that writes it."""
    node, source = finding.node, finding.source
    assert source is not None and node is not None
    runs = {call.call for model in project.models for call in model.calls}
    inside = [part for part in walk(node) if part in runs]
    name = _free_name(source, "output")
    if len(inside) != 1:
        return []
    line = f"{name} = {source.segment(inside[0])}"
    return [insert_before(source, source.statement(node), [line]), replace(source, inside[0], name)]


def _batch_itself(project: Project, finding: Finding) -> list[Edit]:
    """Write `images.to(inputs)` for `inputs.copy_(images)`, where that is what is used: the batch has its own size."""
    node, source = finding.node, finding.source
    assert source is not None and node is not None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "copy_":
        return []
    if len(node.args) != 1 or isinstance(source.parents[node], ast.Expr):
        return []
    given, kept = source.segment(node.args[0]), source.segment(node.func.value)
    is_plain = isinstance(node.args[0], (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return [replace(source, node, f"{given if is_plain else f'({given})'}.to({kept})")]


def _parallel_call(project: Project, finding: Finding) -> list[Edit]:
    """Write `net(*x) if isinstance(x, tuple) else net(x)` for `data_parallel(net, x)`: so it takes what it is given."""
    node, source = finding.node, finding.source
    assert source is not None
    if not isinstance(node, ast.Call):
        return []
    names = ("module", "inputs", "module_kwargs")
    module, inputs, options = (argument_for(node, DATA_PARALLEL_PARAMETERS, name) for name in names)
    if not isinstance(module, (ast.Name, ast.Attribute)) or not isinstance(inputs, (ast.Name, ast.Attribute)):
        return []
    run, given = source.segment(module), source.segment(inputs)
    rest = "" if options is None or isinstance(options, ast.Constant) else f", **{source.segment(options)}"
    text = f"{run}(*{given}{rest}) if isinstance({given}, tuple) else {run}({given}{rest})"
    is_whole = isinstance(source.parents[node], (ast.Return, ast.Assign, ast.Expr))
    return [replace(source, node, text if is_whole else f"({text})")]


def _loader_of_training(project: Project, finding: Finding) -> list[Edit]:
    """Give a finder of learning rates the loader of the training, where there is one."""
    node, source = finding.node, finding.source
    assert source is not None
    given = argument_for(node, ["train_loader"], "train_loader") if isinstance(node, ast.Call) else None
    names = {str(loader.variable) for loader in project.loaders if loader.variable and TRAIN in loader.roles}
    is_test = isinstance(node, ast.Call) and last_name(node) == "range_test"
    if given is None or not is_test or len(names) != 1 or not all(name.isidentifier() for name in names):
        return []
    return [replace(source, given, names.pop())]


def _free_name(source: Source, name: str) -> str:
    taken = {node.id for node in source.nodes.of(ast.Name)}
    return next(one for one in (name, *(f"{name}_{number}" for number in range(2, 99))) if one not in taken)


PATCHES: dict[str, Patch] = {
    "batch-buffer": _batch_itself,
    "data-parallel-call": _parallel_call,
    "removed-next": _next,
    "training-comprehension": _for_statement,
    "closure-step": _closure,
    "suppressed-errors": _suppressed,
    "model-in-write": _model_output,
    "rate-search": _loader_of_training,
}

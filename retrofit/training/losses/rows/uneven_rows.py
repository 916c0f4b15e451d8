"""Batches whose rows are not samples: the nodes of several graphs, the tokens of several samples; padded samples."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.arguments import arguments_given
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.nodes import children, walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import Instance, LocalClass, LocalFunction
from retrofit.training.torch_api.data import GRAPH_LOADERS, LOADER_PARAMETERS, OF_GRAPHS
from retrofit.training.torch_api.tensors import JOINS, PADS_TO_LONGEST

from ...data.batch_values import BATCH
from ...data.loaders import TRAIN
from ...data.shards import builders_of

if TYPE_CHECKING:
    from retrofit.training import Project

PUTS_TOGETHER = JOINS - {"stack"}


def has_uneven_rows(project: Project) -> bool:
    """Return whether the ranks' batches of the same number of samples can have different numbers of rows."""
    return project.analysis.fact("uneven rows", lambda: _has_uneven_rows(project))


def _has_uneven_rows(project: Project) -> bool:
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    built = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    of_graphs = any(project.analysis.called(call, scope) & GRAPH_LOADERS for call, scope in built)
    is_joined = of_graphs or any(_joins_samples(project, call, scope) for call, scope in built)
    return is_joined and not any(_is_about_graphs(node) for node, _ in project.in_batches)


def _is_about_graphs(node: ast.AST) -> bool:
    """Return whether a training makes one row of each graph: global_mean_pool(x, data.batch).

    `data.batch` alone says nothing: a model is given it to find neighbours, too.
    """
    name = last_name(node) if isinstance(node, ast.Call) else node.attr if isinstance(node, ast.Attribute) else ""
    return bool(OF_GRAPHS.search(name))


def pads_samples(project: Project) -> bool:
    """Return whether the samples of a training batch are made as long as the longest one of them."""
    return project.analysis.fact("padded samples", lambda: _pads_samples(project))


def _pads_samples(project: Project) -> bool:
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    built = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    return is_padded_by(project, [place for call, scope in built for place in run_by_collate(project, call, scope)])


def is_padded_by(project: Project, run: list[tuple[ast.AST, Scope]]) -> bool:
    """Return whether what a collate_fn runs makes samples as long as the longest one of them."""
    calls = [(node, where) for node, where in run if isinstance(node, ast.Call)]
    names = {name for call, where in calls for name in project.analysis.called(call, where)}
    takes_longest = any(is_longest(call) for call, _ in calls)
    return bool(names & PADS_TO_LONGEST) or takes_longest


def pads_texts(project: Project) -> bool:
    """Return whether a tokenizer of a library makes the texts of a training batch as long as the longest one."""
    return project.analysis.fact("padded texts", lambda: _pads_texts(project))


def _pads_texts(project: Project) -> bool:
    loaders = [loader for loader in project.loaders if TRAIN in loader.roles]
    built = [place for loader in loaders for place in builders_of(project.analysis, loader)]
    run = [node for call, scope in built for node, _ in run_by_collate(project, call, scope)]
    nodes = (*run, *(node for node, _ in project.in_batches))
    return any(is_padding_of_texts(node) for node in nodes if isinstance(node, ast.Call))


def has_own_lengths(project: Project) -> bool:
    """Return whether the samples of one rank may be longer than those of another: a loop over them has other turns."""
    return pads_samples(project) or pads_texts(project) or project.takes_ready_batches


def has_own_turns(project: Project, loop: ast.AST, scope: Scope) -> bool:
    """Return whether a loop in a function goes through the positions of a rank's samples, which may have others."""
    if not isinstance(loop, ast.For) or loop in project.batch_values.steps or not has_own_lengths(project):
        return False
    is_in_scope = scope.node in scope.source.ancestors(loop)
    return is_in_scope and BATCH in project.batch_values.sources_of(loop.iter, scope)


def is_padding_of_texts(call: ast.Call) -> bool:
    """Return whether this is tokenizer(texts, padding=True, return_tensors="pt") or tokenizer.pad(samples)."""
    given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
    is_longest = given.get("padding", False) is True or given.get("padding") == "longest"
    is_pad = last_name(call) == "pad" and "return_tensors" in given and given.get("padding") != "max_length"
    return is_longest or is_pad


def is_longest(call: ast.Call) -> bool:
    """Return whether this is max(len(x) for x in batch), np.max(lengths), lengths.max(), max(map(len, batch))."""
    if last_name(call) != "max":
        return False
    given = call.args[:1] if len(call.args) == 1 else [call.func.value] if _is_plain_method(call) else []  # type: ignore[attr-defined]
    words = {last_name(part) for value in given for part in walk(value)}
    return bool(words & {"len", "shape", "size"}) or any("len" in word.lower() for word in words)


def _is_plain_method(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and not call.args and not call.keywords


def _joins_samples(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether a loader puts the rows of its samples one after the other, by a collate_fn of the project."""
    run = run_by_collate(project, call, scope)
    return any(isinstance(node, ast.Call) and _is_join(project, node, where) for node, where in run)


def run_by_collate(project: Project, call: ast.Call, scope: Scope) -> list[tuple[ast.AST, Scope]]:
    """Return the nodes that the collate_fn of a loader runs, where it is one of the project."""
    analysis = project.analysis
    given = arguments_given(analysis, call, scope, [*LOADER_PARAMETERS, "collate_fn"], "collate_fn")
    for value in analysis.evaluate(call.func, scope):
        if isinstance(value, LocalClass):  # class Loader(DataLoader): super().__init__(dataset, collate_fn=join)
            made = analysis.classes.method(value.scope, "__init__")
            calls = [part for part in walk(made.node) if isinstance(part, ast.Call)] if made else []
            given += [(k.value, made.scope) for part in calls for k in part.keywords if k.arg == "collate_fn" and made]
    values = [value for node, where in given for value in analysis.evaluate(node, where)]
    functions = [value for value in values if isinstance(value, LocalFunction)]
    objects = [analysis.classes.method(value.scope, "__call__") for value in values if isinstance(value, Instance)]
    starts = [function for function in (*functions, *objects) if function is not None]
    return list(nodes_run(analysis, [(node, f.scope) for f in starts for node in children(f.node)]))


def _is_join(project: Project, call: ast.Call, scope: Scope) -> bool:
    """Return whether this is torch.cat(parts) or np.concatenate(parts), along their first axis."""
    names = project.analysis.called(call, scope)
    is_known = any(name.partition(".")[0] in ("torch", "numpy") for name in names) and last_name(call) in PUTS_TOGETHER
    axes = [*call.args[1:2], *(k.value for k in call.keywords if k.arg in ("dim", "axis"))]
    return is_known and all(isinstance(axis, ast.Constant) and axis.value == 0 for axis in axes)

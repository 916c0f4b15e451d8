"""The values that calls make of one rank's samples: losses, models, methods of tensors, functions of libraries."""

from __future__ import annotations

import ast
from collections.abc import Callable, Container
from dataclasses import dataclass, replace

from retrofit.analysis.calls import last_name
from retrofit.analysis.interpreter.state import NONE, OTHER, SAME, Flow, closed, mixed
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.training.model.modules import is_layer
from retrofit.training.torch_api.modules import CLIP_GRADIENTS, GRADIENT_FUNCTIONS, GRADIENTS_OFF
from retrofit.training.torch_api.runtime import SQUEEZE_ROWS
from retrofit.training.torch_api.tensors import (
    ALONG_AXIS,
    ARRAY_PACKAGES,
    BEFORE_AXIS,
    COUNT_METHODS,
    DISTINCT,
    DRAWN_LIKE,
    ENTRY_FREE,
    ENTRYWISE,
    EXTREMES,
    OPERATORS,
    SAMPLE_MEANS,
    SORTS,
    SUMS_AND_MEANS,
    VALUES_AND_INDICES,
    VIEWS,
    WITHOUT_HISTORY,
    not_in_place,
)

from ..losses.gathering.dimensions import number_of_axes
from ..losses.reductions.axes import axes_of
from ..losses.terms import MEAN as REDUCED_MEAN
from ..losses.terms import terms_at
from . import kinds
from .kinds import (
    BATCH,
    BATCH_SIZE,
    CHOSEN,
    COLUMNS,
    LAYOUT,
    LIST,
    MEAN,
    REDUCIBLE,
    SHAPE,
    SIZE,
    SUM,
    TENSORS,
    WHOLE,
)

SIZES = {SIZE, SHAPE, BATCH_SIZE}
FROM_ALL = {"softmax", "log_softmax", "softmin", "cumprod", "logcumsumexp", "cummax", "cummin", "normalize"}
OF_ROWS = {"softmax", "log_softmax", "sigmoid", "detach", "cpu", "float", "abs", "exp", "sqrt", "pow", "log"}
SIZES_OF = COUNT_METHODS | {"size", "shape"}
SAME_FUNCTIONS = ENTRY_FREE | CLIP_GRADIENTS | GRADIENTS_OFF


@dataclass(frozen=True)
class Calls:
    """The calls of a project: those of `models`, those that are `terms` of a loss, and draws of `rows` of their own.

    `outputs` returns what a model gives of a batch, `operation` what an operator makes of values, `bound` what is
    computed from several of them. `may_train` says whether a value can have gradients, and no row for each sample,
    `is_sum` whether a loss is a sum over its samples.
    """

    analysis: Analysis
    models: Container[ast.Call]
    terms: Container[ast.AST]
    rows: Container[ast.AST]
    outputs: Callable[[ast.Call, Scope], Flow]
    operation: Callable[[ast.expr, list[Flow]], Flow]
    bound: Callable[[list[Flow]], Flow]
    may_train: Callable[[ast.expr, Scope], bool]
    is_sum: Callable[[ast.expr, Scope], bool]

    def value(self, node: ast.Call, scope: Scope, receiver: Flow, given: list[Flow]) -> Flow:
        """Return what a call gives of its receiver and its arguments."""
        flows = [flow for flow in (receiver, *given) if flow.differs]
        if node in self.rows:
            return Flow(OTHER)  # all ranks together draw more rows than one process
        if not flows:
            is_own = node in self.terms and any(flow.is_drawn for flow in (receiver, *given))
            return self._of_drawn(node, scope) if is_own and not _hands_through(node) else NONE
        flow = self._called(node, scope, receiver, given)
        if node in self.terms and flow.differs and not flow.is_read and not _hands_through(node):
            if flow.kind == OTHER:
                is_loss = not any(f.is_read or f.roots for f in flows) and self.may_train(node, scope)
                return Flow(SUM if self.is_sum(node, scope) else MEAN, is_term=True) if is_loss else flow
            return replace(flow, is_term=True)
        return flow

    def _of_drawn(self, node: ast.Call, scope: Scope) -> Flow:
        """Return a term of a loss of samples that a process has drawn itself, as of a generator: criterion(D(G(z)))."""
        is_sum = any(term.reduction == "sum" for term in terms_at(self.analysis, node, scope))
        return Flow(SUM if is_sum else MEAN, is_term=True)

    def _called(self, node: ast.Call, scope: Scope, receiver: Flow, given: list[Flow]) -> Flow:
        names = self.analysis.called(node, scope)
        flows = [flow for flow in (receiver, *given) if flow.differs]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        name = not_in_place(name)
        if name in DRAWN_LIKE and given and given[0].kind in TENSORS:
            return Flow(given[0].kind)
        if names & SAME_FUNCTIONS:
            return NONE
        if names & GRADIENT_FUNCTIONS:
            of_samples = [flow for flow in given[1:2] if flow.kind in TENSORS]
            return Flow(parts=(Flow(BATCH),)) if of_samples else Flow(OTHER, roots=closed(mixed(flows).roots))
        if names & SAMPLE_MEANS and len(node.args) == 2 and not node.keywords:
            return Flow(MEAN, is_read=True) if all(flow.kind == BATCH for flow in flows) else mixed(flows)
        terms = terms_at(self.analysis, node, scope)
        if terms:
            kind = {REDUCED_MEAN: MEAN, "sum": SUM, "none": BATCH}.get(terms[0].reduction, OTHER)
            return Flow(kind) if kind != OTHER and not any(f.is_read for f in flows) else mixed(flows)
        if node in self.models or self.is_of_module(node, scope):
            if not all(flow.kind in TENSORS | {WHOLE} for flow in flows):
                return mixed(flows)
            has_rows = not any(flow.kind in (COLUMNS, LAYOUT) for flow in flows)
            return self.outputs(node, scope) if has_rows else _in_some_layout(self.outputs(node, scope))
        if name in kinds.MAKING and all(flow.kind in SIZES | TENSORS or _is_of_sizes(node, flow) for flow in flows):
            return Flow(BATCH)
        is_arithmetic = name.rstrip("_") in OPERATORS and len(given) == 1
        known = TENSORS | {SAME}
        keeps_rows = name in VIEWS and bool(given) and given[0].kind in SIZES  # x.view(x.size(0), -1)
        are_known = all(flow.kind in known for flow in given[keeps_rows:])
        if receiver.differs and (is_arithmetic or are_known):
            return self._method(node, scope, receiver, name, given)
        built_in = _of_builtin(names, given)
        if built_in is not None:
            return built_in
        is_known = (
            bool(names) and not receiver.differs and all(full.partition(".")[0] in ARRAY_PACKAGES for full in names)
        )
        is_known |= SQUEEZE_ROWS in names
        are_tensors = all(flow.kind in known for flow in given[1:])
        if is_known and given and name in DISTINCT:
            return _distinct(node, scope, given[0])
        if is_known and given and given[0].kind == BATCH and self._mixes_samples(node, scope, name, 1):
            return self.bound([*given, Flow(OTHER)])
        if is_known and given and given[0].differs and (are_tensors or name in kinds.KEEPING):
            flow = made_of(given[0], kinds.of_method(given[0].kind, name, node, 1), name)
            return _with_parts(flow, name) if "torch" in {full.partition(".")[0] for full in names} else flow
        is_unused = isinstance(scope.source.parents.get(node), ast.Expr)  # as of writer.writerow(...)
        return mixed(flows) if is_unused or name in kinds.FORMATTING else self.bound(flows)

    def _method(self, node: ast.Call, scope: Scope, receiver: Flow, name: str, given: list[Flow]) -> Flow:
        if receiver.kind == OTHER:
            return NONE if name in kinds.FIXED else mixed([receiver, *given])
        if name.rstrip("_") in OPERATORS and len(given) == 1:
            operator = ast.BinOp(ast.Name("_", ast.Load()), OPERATORS[name.rstrip("_")], ast.Name("_", ast.Load()))
            return self.operation(operator, [receiver, given[0]])
        if name in DISTINCT:
            return _distinct(node, scope, receiver)
        if receiver.kind == BATCH and self._mixes_samples(node, scope, name, 0):
            return self.bound([receiver, *given, Flow(OTHER)])
        kind = kinds.of_method(receiver.kind, name, node)
        return _with_parts(made_of(receiver, kind, name), name)

    def _mixes_samples(self, node: ast.Call, scope: Scope, name: str, first: int) -> bool:
        """Return whether a function makes entries of those of other samples: the largest ones, the next ones.

        `first`: the number of arguments that are the tensor itself.
        """
        if name not in SORTS | FROM_ALL:
            return False
        before, default = ALONG_AXIS.get(name, (BEFORE_AXIS.get(name, 0), -1))
        axes, _ = axes_of(node, node.args[first + before :], scope)
        axis = default if axes is None else axes[0] if len(axes) == 1 else None
        tensor = node.args[0] if first else node.func.value  # type: ignore[attr-defined]
        if axis != -1:
            return axis == 0
        number = number_of_axes(self.analysis, tensor, scope)
        return number == 1 or (number is None and name in SORTS and not self._is_output(tensor, scope))

    def _is_output(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a tensor is what a model gives for each sample, which has a last axis of its own."""
        while isinstance(node, ast.Name):
            value = scope.only_value(node.id)
            if value is None:
                return True  # it is given to a function, or drawn
            node = value
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not isinstance(node, ast.Call) or node in self.models or self.is_of_module(node, scope):
            return True
        name = last_name(node)
        if name in OF_ROWS:
            is_function = is_method and "torch" in {n.partition(".")[0] for n in self.analysis.called(node, scope)}
            inner = node.args[0] if is_function and node.args else node.func.value if is_method else node  # type: ignore[attr-defined]
            return inner is node or self._is_output(inner, scope)
        return name not in SUMS_AND_MEANS | EXTREMES and not terms_at(self.analysis, node, scope)

    def is_of_module(self, node: ast.Call, scope: Scope) -> bool:
        return any(is_layer(self.analysis, value) for value in self.analysis.evaluate(node.func, scope))


def all_entries(flow: Flow) -> Flow:
    """Return what is made of the entries of all samples, where they are brought together: the distinct ones, a list."""
    if flow.kind not in (BATCH, CHOSEN) or flow.place is None:
        return flow if flow.kind == OTHER else mixed([flow])
    return Flow(OTHER, is_read=True, roots=flow.roots | {replace(flow.place, kind=LIST)}, cells=flow.cells)


def _distinct(node: ast.Call, scope: Scope, flow: Flow) -> Flow:
    """Return the distinct entries: where they are counted, and no more, those of all samples are."""
    outer = scope.source.parents.get(node)
    is_counted = isinstance(outer, ast.Call) and last_name(outer) == "len" and not node.keywords
    is_counted |= isinstance(outer, ast.Attribute) and outer.attr in SIZES_OF and not node.keywords
    return all_entries(flow) if is_counted else mixed([flow])


def made_of(base: Flow, kind: str, name: str) -> Flow:
    """Return what an attribute or a method makes of a value, when it is of a kind then."""
    if kind == SAME:
        return NONE
    if kind == OTHER:
        return mixed([base])
    is_kept = name in kinds.KEEPING or name.startswith("loss") or (base.is_term and name in kinds.SCALARS)
    is_term = base.is_term and is_kept
    if is_term and name in WITHOUT_HISTORY and kind in TENSORS and name == "item":
        kind = MEAN  # of the one number that a model has computed as its loss
    elif name == "item" and kind in TENSORS:
        return mixed([replace(base, kind=kind)])
    return replace(base, kind=kind, is_read=base.is_read or name in WITHOUT_HISTORY, is_term=is_term, cells=frozenset())


def _is_of_sizes(node: ast.Call, flow: Flow) -> bool:
    """Return whether a value can be the shape that a call is given as a whole: torch.randn((len(images), 3))."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    is_written = any(isinstance(argument, (ast.Tuple, ast.List)) for argument in given)
    return is_written and bool(flow.roots) and all(root.kind in SIZES for root in flow.roots)


def _hands_through(node: ast.Call) -> bool:
    """Return whether a call is of a method that makes no loss: images.cuda()."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return name in kinds.KEEPING | ENTRYWISE | kinds.TURNING | VIEWS


def _of_builtin(names: set[str], given: list[Flow]) -> Flow | None:
    """Return what Python's own functions of numbers give, None for other calls."""
    if names & {"len"} and given:
        return _length(given[0])
    if names & {"float", "int"} and given:
        return replace(given[0], is_read=True) if given[0].kind in REDUCIBLE else _read(given[0])
    if names & {"max", "min"} and len(given) == 2 and given[0].kind in (SIZE, SUM) and not given[1].differs:
        return given[0]
    if names & {"sum"} and len(given) == 1:
        return replace(given[0], cells=frozenset()) if given[0].kind in (MEAN, SUM) else mixed(given)
    return None


def _in_some_layout(outputs: Flow) -> Flow:
    """Return the outputs of a model whose inputs do not have a row per sample: how they lie is not known."""
    parts = tuple(replace(part, kind=LAYOUT) if part.kind == BATCH else part for part in outputs.parts)
    return replace(outputs, kind=LAYOUT if outputs.kind == BATCH else outputs.kind, parts=parts)


def _read(flow: Flow) -> Flow:
    return made_of(flow, flow.kind, "item") if flow.kind in TENSORS else mixed([flow])


def _length(flow: Flow) -> Flow:
    kind = kinds.HELD.get(flow.kind, flow.kind)
    if kind in (BATCH, CHOSEN):
        return Flow(SIZE if kind == BATCH else SUM, is_read=False)
    return NONE if kind in (WHOLE, COLUMNS) else mixed([flow])


def _with_parts(flow: Flow, name: str) -> Flow:
    """Return what gives values and their places along a dimension as a pair: `values, indices = x.max(1)`."""
    if name not in VALUES_AND_INDICES or flow.kind not in TENSORS:
        return flow
    part = replace(flow, place=None)
    return replace(flow, parts=(part, part))

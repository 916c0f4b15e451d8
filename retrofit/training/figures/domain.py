"""The interpreter's knowledge of torch: which values are of one rank's samples, and what operations make of them."""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import replace
from functools import partial, reduce

from retrofit.analysis.interpreter.state import NONE, OTHER, SAME, Flow, Root, escaped, joined, mixed
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import FUNCTIONS, Scope, own_nodes
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import Instance, LocalClass, LocalFunction
from retrofit.analysis.values.views import unchanged
from retrofit.training.model.modules import has_no_weights, is_module
from retrofit.training.torch_api.data import GRAPH_COUNTS, SAME_ELEMENTS
from retrofit.training.torch_api.files import SAVES_ITSELF
from retrofit.training.torch_api.modules import HOOKING, SYNC_BATCHNORM, WRAPPERS
from retrofit.training.torch_api.output import BARS
from retrofit.training.torch_api.runtime import (
    EVALUATION_SHARES,
    OF_BATCH_IN_HAND,
    OWN_BATCH_SIZES,
    OWN_SAMPLES,
    RANK_SHARE,
    SAME_BATCHES,
    SUM_ATTRIBUTES,
    TRAINING_SHARES,
    WHOLE_BATCHES,
)
from retrofit.training.torch_api.tensors import ENTRYWISE, GIVEN_RESULT

from .. import Project
from ..data import shapes
from ..data.batches import made_before
from ..data.drawn import loaders_in
from ..data.draws.drawing_loops import drawing_loops, is_split_by_map
from ..data.draws.slices.empty_batches import asks_for_samples
from ..data.loaders import EVALUATION, TRAIN
from ..data.random_draws import draws_in_loop
from ..evaluation.whole_passes import whole_passes
from ..loops import LOOPS, calls_without_training, phase_of
from ..losses.reductions.reduction import counts_outputs, is_summed
from ..losses.rows.uneven_rows import has_own_turns
from ..optimizer.rates import is_rate_of_group
from ..steps.draws_per_batch import rows_per_batch
from . import kinds
from .batch_parts import has_entry_per_row, has_parts, is_gone_through
from .calls import Calls, all_entries, made_of
from .counts.epoch_steps import OF_TRAINING, steps_counted
from .counts.size_uses import (
    IN_SETS,
    counts_epoch,
    divides_by_open_size,
    divides_whole_figure,
    held_once,
    is_batch_size,
    is_carried_count,
    is_multiplied,
)
from .decisions import compares_count, decides
from .kinds import BATCH, BATCH_SIZE, CHOSEN, HELD_ROWS, MEAN, PER_SIZE, SHAPE, SIZE, SUM, TENSORS, WHOLE
from .loss_names import LossNames
from .model_outputs import may_be_loss, outputs_of
from .set_by_models import is_set_by_model
from .shown import Shown
from .sinks import DECIDES, WEIGHS, Sinks
from .together import gives_the_same, made_the_same

NUMBERS = frozenset({"range", "len", "int", "min", "max"})  # functions that give nothing of what a loader draws
COUNTS_OF_BATCH = OF_BATCH_IN_HAND | {RANK_SHARE}
SOURCES = EVALUATION_SHARES | TRAINING_SHARES
SAME_OBJECTS = SAME_ELEMENTS | WRAPPERS | SYNC_BATCHNORM  # calls that give what they are given, or what is in it


def _run_by(analysis: Analysis, scope: Scope, calls: set[ast.Call]) -> Iterator[LocalFunction]:
    """Yield the functions that some calls run, of those that are in a scope."""
    for node in own_nodes(scope.node) if calls else ():
        if isinstance(node, ast.Call) and node in calls:
            yield from analysis.functions_called(node, scope)


class TorchDomain:
    """The facts of one project, and the notes of one run through it."""

    def __init__(self, project: Project) -> None:
        self.project, self.analysis, self.lasting = project, project.analysis, kinds.HELD.keys()
        self.sinks = Sinks(self.analysis, project.outputs)
        self.shown: dict[ast.AST, Shown] = {}
        sharded = [loader for loader in project.loaders if TRAIN in loader.roles or loader.is_split]
        uses = [use for loader in sharded for use in loader.uses if use.expression not in whole_passes(project)]
        whole = {use.expression for loader in project.loaders if loader not in sharded for use in loader.uses}
        self.drawn = {use.expression for use in uses} - whole
        self.loops: set[ast.AST] = {use.loop for use in uses if use.role == TRAIN and use.loop is not None}
        self.counted = set(self.loops)  # over loaders that say how large a batch is
        drawing = drawing_loops(project)
        if not self.loops:  # also where steps are made in a loop inside, with one batch
            steps = [[loop for loop, _ in path.loops] for path in project.paths]
            self.loops = {loops[0] for loops in steps if drawing.isdisjoint(loops)}
        self.loops |= drawing
        self.counted = set(self.loops) if project.draws.is_used else self.counted
        evaluated = {use.loop for use in uses if use.role == EVALUATION and use.loop is not None} - self.loops
        self.batch_loops = self.loops | evaluated
        self.is_count_check = partial(compares_count, self.batch_loops)
        self.is_decided_together = partial(asks_for_samples, project)
        self.models = {call.call for model in project.models for call in model.calls}
        self.losses = LossNames(project)
        self.terms = self.losses.terms
        self.steps = {frame.scope for path in project.paths for frame in path.frames}
        both: set[ast.AST] = {loop for path in project.paths for loop in phase_of(path)}
        silent = calls_without_training(self.analysis, project.paths)
        both |= {f.node for scope in self.analysis.scopes() for f in _run_by(self.analysis, scope, silent)}
        self.both = both  # loops and functions that train at one time, and evaluate at another
        self.trains_in = {path.frames[0].scope for path in project.paths}
        # What one value is computed from: all of it is reduced, or none. None is something that was not followed.
        self.bonds: set[frozenset[Root | None]] = set()
        self._inner: dict[Scope, bool] = {}
        outputs, rows = partial(outputs_of, project), rows_per_batch(project)
        made = self.operation, self._bound, partial(may_be_loss, project), partial(is_summed, project)
        self.calls = Calls(self.analysis, self.models, self.terms, rows, outputs, *made)

    def element(self, drawn: ast.expr, scope: Scope) -> Flow | None:
        """Return a batch, with its number where the loop counts, and what else is drawn next to it."""
        if drawn in self.drawn or self._holds_drawn(drawn, scope):
            return self.taken_apart(drawn, scope, Flow(BATCH))
        if isinstance(drawn, ast.Name):
            made = made_before(self.analysis, drawn, scope)
            is_itself = made is None or any(isinstance(n, ast.Name) and n.id == drawn.id for n in walk(made))
            return None if made is None or is_itself else self.element(made, scope)
        if not isinstance(drawn, ast.Call):
            return None
        given = unchanged(self.analysis, drawn, scope)
        if given is not None:
            return self.element(*given)
        names = self.analysis.called(drawn, scope)
        if names & EVALUATION_SHARES or is_split_by_map(self.analysis, drawn, scope):
            return Flow(BATCH)
        if WHOLE_BATCHES in names or names & (NUMBERS | SAME_BATCHES):
            return None if names & NUMBERS else NONE
        inner = [self.element(part, scope) for part in drawn.args]
        found = [flow for flow in inner if flow is not None]
        if not found or self.analysis.functions_called(drawn, scope):
            return None
        if "enumerate" in names:
            return Flow(parts=(NONE, found[0]))
        return Flow(parts=tuple(flow or NONE for flow in inner)) if "zip" in names else found[0]

    def _holds_drawn(self, drawn: ast.expr, scope: Scope) -> bool:
        """Return whether this is a loader that is known by where it is made: loaders[0], a parameter."""
        held = drawn.value if isinstance(drawn, ast.Subscript) and not isinstance(drawn.slice, ast.Slice) else drawn
        made = loaders_in(self.analysis, drawn, scope) if isinstance(held, (ast.Name, ast.Attribute)) else ()
        return any(each in self.drawn for each, _ in made if each is not drawn)

    def taken_apart(self, drawn: ast.expr, scope: Scope, flow: Flow) -> Flow:
        if flow.parts and len(flow.parts) == 2:  # with its number
            return replace(flow, parts=(flow.parts[0], self.taken_apart(drawn, scope, flow.parts[1])))
        is_batch = flow.kind == BATCH and flow.place is None and not flow.parts
        return replace(flow, kind=WHOLE) if is_batch and has_parts(self.analysis, drawn, scope, self.models) else flow

    def made_of_each(self, node: ast.expr, scope: Scope, drawn: Flow) -> Flow | None:
        return Flow(BATCH) if drawn.kind == BATCH and has_entry_per_row(self.project, node, scope) else None

    def is_batch_loop(self, loop: ast.AST) -> bool:
        return loop in self.batch_loops

    def place(self, node: ast.expr, scope: Scope, loops: tuple[ast.AST, ...], kind: str, is_open: bool) -> Root | None:
        if kind in (OTHER, SHAPE, PER_SIZE) or node not in scope.source.parents:
            return None
        may_be_run = scope in self.steps or kind == BATCH_SIZE  # of which every process knows that of all
        is_inside = any(loop in self.loops for loop in loops) or (may_be_run and self._runs_inside(scope))
        if any(loop in self.batch_loops - self.loops for loop in loops):
            return None
        if not is_inside and kind == BATCH_SIZE:
            counted = (
                OF_TRAINING if counts_epoch(self.project, node, scope) else steps_counted(self.project, node, scope)
            )
            is_inside, is_open = bool(counted), is_open and counted == OF_TRAINING
        if not is_inside:
            return None
        return Root(node, scope, kind, is_open and not any(has_own_turns(self.project, loop, scope) for loop in loops))

    def _runs_inside(self, scope: Scope) -> bool:
        """Return whether a function is called in loops over training batches only."""
        if scope in self._inner or not isinstance(scope.node, FUNCTIONS):
            return self._inner.get(scope, False)
        self._inner[scope] = False
        sites = self.analysis.callers(scope.node)
        self._inner[scope] = bool(sites) and all(
            self._is_in_loop(site.scope, site.call) or self._runs_inside(site.scope) for site in sites
        )
        return self._inner[scope]

    def _is_in_loop(self, scope: Scope, call: ast.AST) -> bool:
        for outer in scope.source.ancestors(call):
            if outer is scope.node:
                return False
            if isinstance(outer, LOOPS) and outer in self.batch_loops:
                return outer in self.loops
        return False

    def name(self, node: ast.expr, scope: Scope, flow: Flow) -> Flow:
        if not flow.differs and is_batch_size(self.project, node, scope):
            place = self.place(node, scope, tuple(scope.source.ancestors(node)), BATCH_SIZE, True)
            is_fixed = self._is_micro(node, scope)
            return Flow(BATCH_SIZE) if place is not None and not is_fixed else flow
        if not isinstance(node, ast.Name):
            return flow
        is_loss = flow.differs and node.id in self.losses.names.get(scope, ())
        return self._as_term(node, scope, flow) if is_loss else flow

    def divisor(self, node: ast.expr, scope: Scope, dividend: Flow) -> Flow:
        is_divisor = dividend.kind == SUM or (
            self.project.batch_sizes.is_number(node, scope) and steps_counted(self.project, node, scope) == OF_TRAINING
        )
        return self.name(node, scope, NONE) if is_divisor else NONE

    def _is_micro(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether the part of a batch size that a rank has is asked for: rd.data.own_batch_size(batch_size)."""
        outer = scope.source.parents[node]
        return isinstance(outer, ast.Call) and bool(self.analysis.called(outer, scope) & OWN_BATCH_SIZES)

    def is_apart(self, flow: Flow) -> bool:
        """Return whether processes can differ in a test: in what they draw at random, not in the batch size alone."""
        roots = escaped(flow)
        return flow.is_drawn or (flow.differs and not (roots and all(root.kind == BATCH_SIZE for root in roots)))

    def counts_samples(self, flow: Flow) -> bool:
        """Return whether a value is made of batches that were counted, times the batch size: `step * batch_size`."""
        roots = escaped(flow)
        return bool(roots) and all(root.kind == BATCH_SIZE and is_multiplied(root) for root in roots)

    def is_random(self, node: ast.expr, scope: Scope) -> bool:
        return isinstance(node, ast.Call) and draws_in_loop(self.project, node, scope)

    def is_about_shape(self, node: ast.expr) -> bool:
        return shapes.is_about_shape(node)

    def _as_term(self, node: ast.Name, scope: Scope, flow: Flow) -> Flow:
        """Return a loss, or a term of it: what it is computed from need not be understood."""
        if self.losses.is_unseen(node, scope, flow):
            return Flow(SUM if is_summed(self.project, node, scope) else MEAN, is_term=True)
        if flow.kind == MEAN and not flow.is_read and is_summed(self.project, node, scope):
            return Flow(SUM, is_term=True)  # of one sample after the other
        return replace(flow, is_term=True) if flow.kind in TENSORS | {MEAN, SUM} else flow

    # What becomes of them.

    def attribute(self, base: Flow, name: str) -> Flow:
        if base.kind == OTHER:
            return NONE if name in kinds.FIXED else mixed([base])
        is_size = base.kind in TENSORS and (name == "size" or name in GRAPH_COUNTS)
        kind = SIZE if is_size else kinds.of_method(base.kind, name, None)
        if kind == OTHER and base.kind in TENSORS and name not in ENTRYWISE:
            kind = base.kind  # `outputs.logits`, `batch.x`
        return made_of(base, kind, name)

    def set_unseen(self, node: ast.Attribute, scope: Scope, followed: Container[Scope]) -> Flow:
        return Flow(OTHER) if is_set_by_model(self.analysis, node, scope, followed) else NONE

    def shows_itself(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and call.func.attr in SAVES_ITSELF

    def hooked(self, call: ast.Call) -> Flow | None:
        is_hook = isinstance(call.func, ast.Attribute) and call.func.attr in HOOKING and bool(call.args)
        return Flow(BATCH) if is_hook else None

    def item(self, base: Flow, index: ast.expr, key: Flow) -> Flow:
        if base.kind == OTHER:
            return mixed([base, key])
        if key.differs:
            return replace(base, kind=CHOSEN, is_term=False) if base.kind in TENSORS else mixed([base, key])
        kind = kinds.of_index(base.kind, index)
        if kind == SAME:
            return NONE
        return mixed([base]) if kind == OTHER else replace(base, kind=kind, parts=(), cells=frozenset())

    def operation(self, node: ast.expr, parts: list[Flow]) -> Flow:
        flows = [replace(flow, cells=frozenset()) if flow.cells else flow for flow in parts]
        given = [flow for flow in flows if flow.differs]
        if not given:
            return NONE
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd, ast.Invert)):
            return given[0] if given[0].kind != OTHER else mixed(given)
        if isinstance(node, ast.Compare) and all(flow.kind in TENSORS | {SAME} for flow in flows):
            return replace(given[0], kind=given[0].kind, is_term=False)
        if not isinstance(node, ast.BinOp):
            return self._bound(given)
        if isinstance(node.left, (ast.Constant, ast.JoinedStr)) and not isinstance(
            getattr(node.left, "value", None), (int, float)
        ):
            return mixed(given)
        if divides_whole_figure(self.project, node, flows):
            return NONE
        if flows[0].kind == SUM and divides_by_open_size(self.project, node):
            self.bonds.add(flows[0].roots | {flows[0].place, None})  # which leaves it that of one rank
            return mixed(given)
        kind = kinds.of_operator(node.op, *(flow.kind for flow in flows))
        if kind in (OTHER, SAME) or any(flow.roots for flow in given):
            return self._bound(given)
        return self._combined(kind, given)

    def _bound(self, given: list[Flow]) -> Flow:
        """Return what is computed from several values, and take note that they belong together."""
        flow = mixed(given)
        if len(given) > 1:
            self.bonds.add(flow.roots | {None} if any(not escaped(part) for part in given) else flow.roots)
        return flow

    def _combined(self, kind: str, given: list[Flow]) -> Flow:
        """Return what is put together: it gets a place where that is done, in a loop over batches."""
        if len(given) == 1:
            return replace(given[0], kind=kind)
        inputs = frozenset(place for flow in given for place in escaped(flow))
        return Flow(kind, is_term=all(flow.is_term for flow in given), inputs=inputs)

    def call(self, node: ast.Call, scope: Scope, receiver: Flow, given: list[Flow]) -> Flow:
        if node in self.models:
            values = zip([*node.args, *(keyword.value for keyword in node.keywords)], given)
            counts = [(value, flow) for value, flow in values if is_carried_count(flow)]
            if counts:
                self.show(node, scope, WEIGHS, counts)
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            held = held_once(self.analysis, node, scope, given)
            if held == IN_SETS:
                return all_entries(given[0])
            if not held and counts_outputs(self.project, node, scope):
                return NONE
        return self.calls.value(node, scope, receiver, given)

    def is_opaque(self, call: ast.Call, scope: Scope) -> bool:
        if call in self.models and self.calls.is_of_module(call, scope):
            return True
        values = self.analysis.evaluate(call.func, scope)
        is_function = any(isinstance(value, LocalFunction) for value in values)  # too: what a text names
        for value in values:
            if isinstance(value, LocalClass) and not is_function and self.is_made_unseen(value.scope):
                return True
            if isinstance(value, Instance) and is_module(self.analysis, value):
                is_term = call in self.terms and call not in self.models
                return not is_term and not has_no_weights(self.analysis, value.scope)
        return False

    def is_made_unseen(self, owner: Scope) -> bool:
        return is_module(self.analysis, Instance(owner)) and not self._trains(owner)

    def _trains(self, owner: Scope) -> bool:
        return any(frame.scope.parent is owner for path in self.project.paths for frame in path.frames)

    def keeps(self, call: ast.Call) -> bool:
        return call not in self.models  # a metric or a meter does

    def kept(self, flow: Flow) -> Flow:
        """Return what a list holds of a batch that it outlives: all entries, where they are brought together."""
        return all_entries(flow) if flow.kind in (BATCH, CHOSEN) else flow

    # What is shown.

    def sink(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        return self.sinks.of(call, scope, is_discarded)

    def not_shown(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        """Return what a progress bar goes through."""
        return call.args[:1] if self.analysis.called(call, scope) & BARS else []

    def sink_of_entry(self, target: ast.Subscript, scope: Scope) -> str:
        return DECIDES if is_rate_of_group(self.analysis, target, scope) else self.sinks.of_entry(target, scope)

    def sink_of_factor(self, factor: ast.expr, scope: Scope, flow: Flow, other: Flow) -> str:
        return WEIGHS if flow.differs and self.losses.weighs(factor, scope, flow, other) else ""

    def show(self, node: ast.AST, scope: Scope, kind: str, flows: list[tuple[ast.expr, Flow]]) -> None:
        shown = self.shown.setdefault(node, Shown(node, scope, kind))
        for expression, flow in flows:
            shown.values[expression] = None
            whole = mixed([flow])
            shown.roots |= whole.roots
            shown.is_unknown = shown.is_unknown or not whole.roots

    def result(self, call: ast.Call, scope: Scope) -> Flow | None:
        names = self.analysis.called(call, scope)
        if names & COUNTS_OF_BATCH:
            return Flow(SIZE)  # a sum divided by it is a mean, as the gradients are averaged
        if names & OWN_SAMPLES:
            return Flow(HELD_ROWS if call in self.project.draws.sequences else BATCH)
        function = call.func
        is_backward = isinstance(function, ast.Attribute) and function.attr == "backward"
        if is_backward and not self.analysis.functions_called(call, scope):
            return NONE  # optimizer.backward(loss): gradients, which DDP averages; the optimizer keeps no figure
        return NONE if gives_the_same(names) else None

    def changed(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        return made_the_same(call, self.analysis.called(call, scope))

    def written(self, call: ast.Call, scope: Scope) -> list[ast.expr]:
        return [keyword.value for keyword in call.keywords if keyword.arg == GIVEN_RESULT]

    def attributes_brought_together(self, call: ast.Call, scope: Scope) -> list[str]:
        """Return those of `sum_attributes(meter, "sum", avg=...)`."""
        if not call.args or SUM_ATTRIBUTES not in self.analysis.called(call, scope):
            return []
        names = [str(part.value) for part in call.args[1:] if isinstance(part, ast.Constant)]
        return names + [keyword.arg for keyword in call.keywords if keyword.arg not in (None, "of")]

    def either(self, flows: list[Flow]) -> Flow:
        one = reduce(joined, flows)
        return one if one.kind in (MEAN, OTHER, SAME) else mixed(flows)  # a mean can be one of means that are reduced

    def draws(self, node: ast.expr, scope: Scope) -> Flow | None:
        if isinstance(node, ast.Call) and self.analysis.called(node, scope) & SOURCES:
            return Flow(BATCH)
        return Flow(BATCH) if node in self.drawn and not is_gone_through(node, scope) else None

    def looked_up(self, key: Flow) -> Flow:
        """Return the entries that indices choose from what is the same on all ranks."""
        return Flow(BATCH) if key.kind == BATCH and not key.is_read else mixed([key])

    def hands_on(self, call: ast.Call, scope: Scope) -> bool:
        names = self.analysis.called(call, scope)
        return bool(names & SAME_OBJECTS) or any(name.startswith("itertools.") for name in names)

    def trained(self, scope: Scope) -> set[str]:
        return self.losses.trained(scope)

    def decides(self, branch: list[ast.stmt], scope: Scope) -> bool:
        return decides(branch, scope, self.sinks, self.trained(scope))

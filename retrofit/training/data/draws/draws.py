"""Batches that a training draws itself, without a loader: at random, or as slices of its data one after another."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from retrofit.analysis.calls import last_name
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.calls.sites import call_chains
from retrofit.analysis.flow.keys import Key
from retrofit.analysis.flow.operands import inputs
from retrofit.analysis.flow.sources import Origin, is_followed, origins
from retrofit.analysis.flow.stored import stored_in
from retrofit.analysis.flow.variables import variables_of
from retrofit.analysis.nodes import walk
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.kinds import is_dict
from retrofit.training.torch_api.draws import FOLDS
from retrofit.training.torch_api.modules import PARAMETER_CLASSES
from retrofit.training.torch_api.runtime import DRAW_TOGETHER, OWN_SAMPLES

from ...loops import Path
from ..shapes import is_about_shape, measured
from .calls.drawing_calls import drawing_call
from .draw import CALL, COLUMNS, PARTS, RANDOM, SEQUENCES, SLICE, Draw, Draws, Problem
from .drawing_loops import is_split_by_map
from .filled import filled_in, is_filled_by_model
from .given_batches import given_in_step, has_batches
from .repeated import is_repeated
from .sized_draws import drawn_from, has_unseeded_generator, is_number, is_order, is_small, shuffled, size_of
from .slices.sample_rows import columns_of, cuts_samples, is_by_rows, is_in_random_order, is_named
from .slices.side_by_side import SideBySide, read_elsewhere, side_by_side
from .slices.slices import Slice, bounds_of, cut_into_parts, slice_of
from .whole import evaluated_whole, kept_whole
from .without_batch import follows_loop, has_other_batch, without_batch

if TYPE_CHECKING:
    from ... import Project

Through = Callable[[Origin], "list[Origin] | tuple[()]"]

UNCLEAR = "whether {} cuts samples, or one sequence, cannot be told"


def find_draws(project: Project) -> Draws:
    """Return what the training draws where no loader gives it batches."""
    found = Draws()
    followed: set[ast.AST] = set()  # what the losses are computed from
    if project.distribution.is_by_hand:
        return found
    for path in (path for path in project.paths if not has_batches(project, path)):
        search = _Search(project, path)
        search.run()
        found.problems += search.problems
        found.batches.update(search.batches)
        found.orders.update(search.orders)
        found.split.update(search.split)
        found.sequences.update(search.sequences)
        followed |= search.followed
        if not search.batches and not search.split and not search.problems:
            _note_call(found, project, path)
    places = [*((draw.node, draw.scope) for draw in found.batches.values()), *found.split.items()]
    found.batches, apart, evaluated = kept_whole(project, found.batches, places, followed)
    found.whole = {**dict(evaluated_whole(project, places, followed)), **apart}
    for call, scope in evaluated.items():
        text = f"{ast.unparse(call)} gives an evaluation its batches, too, of which each process would have a part"
        found.problems.append((call, scope, text))
    chains = (call for place in places for call, _ in call_chains(project.analysis, *place))
    found.calls = set(chains) - {frame.node for path in project.paths for frame in path.frames} - set(found.whole)
    return found


def _note_call(found: Draws, project: Project, path: Path) -> None:
    """Note the call of a function that draws a batch by itself, or why there is none."""
    drawn = drawing_call(project, path)
    if drawn is not None and not has_other_batch(project, path, drawn[0]):
        call, scope, sizes = drawn
        found.batches[call] = Draw(call, scope, sizes, CALL)
    else:
        found.problems.append(without_batch(project, path))


class _Search:
    """The search from one backward call for what its loss is computed from."""

    def __init__(self, project: Project, path: Path) -> None:
        self.project, self.analysis, self.path = project, project.analysis, path
        self.loop_nodes = project.nodes_in_loops
        self.model_calls = {call.call for model in project.models for call in model.calls}
        self.filled = filled_in(project)
        self.followed: set[ast.AST] = set()
        self.batches: dict[ast.expr, Draw] = {}
        self.orders: dict[ast.Call, Scope] = {}
        self.split: dict[ast.Call, Scope] = {}
        self.chosen: dict[ast.Subscript, Scope] = {}
        self.problems: list[Problem] = []
        self.around = {loop for loop, _ in path.loops}  # that a step is a turn of
        self.around_loop = {frame.node for frame in path.frames}
        self.sequences: dict[ast.expr, Scope] = {}
        self.cuts: dict[ast.Subscript, tuple[Scope, SideBySide]] = {}
        self.of_step: Collection[ast.AST] = set()  # what may be put into a list of samples: rows.append(ids)

    def run(self) -> None:
        frame = self.path.frames[0]
        assert isinstance(frame.node, ast.Call) and isinstance(frame.node.func, ast.Attribute)
        start = Origin(frame.node.func.value, frame.scope)
        self._follow(start)
        if not (self.batches or self.split or self.problems):
            self.of_step = self.project.nodes_in_batches
            self._follow(start)
        for call, scope in shuffled(self.analysis, self.project.in_loops):
            self._note_order(call, scope)
        others = [*self._drawn_by_sample(), *self._kept_by_sample(), *self._cut_from_filled()]
        if others and not (self.batches or self.split or self.problems):
            self.problems.append(without_batch(self.project, self.path))  # the cause; what others say follows from it
        self.problems += others
        self.problems += self._sequences_elsewhere()

    def _follow(self, start: Origin) -> None:
        for origin in origins(self.analysis, [start], self._through):
            self.followed.add(origin.node)

    def _through(self, origin: Origin) -> list[Origin] | tuple[()]:
        node, scope = origin.node, origin.scope
        if isinstance(node, ast.AugAssign):
            return list(inputs(self.analysis, origin))
        if isinstance(node, ast.Call):
            names = self.analysis.called(node, scope)
            if names & OWN_SAMPLES or is_split_by_map(self.analysis, node, scope):
                self.split[node] = scope
                return ()
            if names & PARAMETER_CLASSES or DRAW_TOGETHER in names:
                return ()
            if node in self.model_calls:
                return [origin.to(part, keys=()) for part in (*node.args, *(k.value for k in node.keywords))]
            if self._is_parts(node, origin):
                return self._sliced(node, scope)
        if node in self.loop_nodes and isinstance(node, ast.Subscript):
            self.chosen[node] = scope
        if node in self.loop_nodes and self._is_batch(node, scope):
            return self._sliced(node, scope)
        return [*given_in_step(self.project, origin), *self._put_in(origin)]

    def _put_in(self, origin: Origin) -> list[Origin]:
        """Return what a step puts into a list of samples, which it makes a batch of."""
        stored = stored_in(self.analysis, origin.node, origin.scope) if self.of_step else ()  # type: ignore[arg-type]
        return [Origin(item.value, item.scope) for item in stored if item.value in self.of_step]

    @cached_property
    def _of_a_step(self) -> set[ast.AST]:
        """Return what is run in each turn of the innermost loop, and not where it takes the next turn."""
        loop, frame = self.path.loops[0]
        return {node for node, _ in nodes_run(self.analysis, [(part, frame.scope) for part in loop.body])}

    def _is_parts(self, node: ast.Call, origin: Origin) -> bool:
        """Return whether a call gives one batch after another, of a written size: order.split(size)."""
        if node not in self.loop_nodes or origin.keys[:1] != (Key.ELEMENT,) or last_name(node) != "split":
            return False
        names = self.analysis.called(node, origin.scope)
        if any(name.startswith(FOLDS) for name in names):
            return False
        if any(name.startswith("numpy.") for name in names):  # given a number of parts, not their size
            text = f"{ast.unparse(node)} is given a number of parts, not their size"
            self.problems.append((node, origin.scope, text))
            return False
        given, size = cut_into_parts(node, names)
        if size is None or node in self._of_a_step or self._has_batch(given, origin.scope):
            return False  # what a step cuts is a part of its batch
        if not is_in_random_order(self.analysis, given, origin.scope) and not is_named(
            self.analysis, size, origin.scope
        ):
            self.problems.append((node, origin.scope, UNCLEAR.format(ast.unparse(node))))
        self.batches[node] = Draw(node, origin.scope, ((size, origin.scope),), PARTS)
        return True

    def _sliced(self, node: ast.expr, scope: Scope) -> list[Origin]:
        """Return what batches are cut from; nothing for those that are drawn at random."""
        if isinstance(node, ast.Call) and node in self.batches and self.batches[node].kind == PARTS:
            return [Origin(cut_into_parts(node, self.analysis.called(node, scope))[0], scope)]
        return [Origin(node.value, scope)] if bounds_of(node) is not None else []  # type: ignore[attr-defined]

    def _is_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether an expression is a batch, and note it, or why it cannot be told."""
        if node in self.batches:
            return True
        if node in self.of_columns:
            if is_order(self.analysis, node, scope):
                self._note_order(node, scope)  # type: ignore[arg-type]
            return False
        size = size_of(self.analysis, node, scope)
        if size is not None:
            if is_small(size) or self._is_of_batch(size, scope):
                return False
            self._note_random(node, scope, size)
            return True
        if self._is_of_sequences(node, scope):
            return True
        found = slice_of(self.analysis, node, scope, self.loop_nodes)
        if found is not None:
            if self._has_batch(found.node.value, scope):  # a part of what was drawn for a batch
                if self._is_cut_again(found):
                    self.problems.append((node, scope, f"{ast.unparse(node)} cuts what was drawn into smaller batches"))
                return False
            if self.of_step and is_repeated(self.analysis, node, scope, self.around, self.followed):
                return False  # a part of a batch, as of rays that are rendered in chunks
            self._note_slice(found)
            return True
        if is_order(self.analysis, node, scope):
            self._note_order(node, scope)  # type: ignore[arg-type]
        elif isinstance(node, ast.Subscript) and self._is_choice_of_draw(node, scope):
            base, whole = ast.unparse(node.value), ast.unparse(node)
            self.problems.append((node, scope, f"{base} is drawn again while it trains, and {whole} chooses from it"))
        return False

    @cached_property
    def of_columns(self) -> set[ast.AST]:
        """What chooses in another dimension of a batch than that of its samples: `nodes` of batch[:, nodes]."""
        found: set[ast.AST] = set()
        for node, scope in self.project.in_loops:
            for part in columns_of(node):
                if self._has_batch(node.value, scope):  # type: ignore[attr-defined]
                    chosen = origins(self.analysis, [Origin(part, scope)], self._to_batch)
                    found |= {origin.node for origin in chosen}
        return found

    def _is_of_sequences(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a slice is a step along sequences that lie side by side, and note what lays them out."""
        found = side_by_side(self.analysis, node, scope, self.loop_nodes, self.followed | self.around_loop)
        for laid in found:
            if laid.layout is None:
                self.split[laid.node] = laid.scope  # type: ignore[index]
                self.sequences[laid.node] = laid.scope
            else:
                kind, size = COLUMNS if laid.layout.dimension else SEQUENCES, (laid.layout.size, laid.layout.scope)
                self.batches[laid.node] = Draw(laid.node, laid.scope, (size,), kind)
                self.cuts[node] = scope, laid  # type: ignore[index]
        return bool(found)

    def _sequences_elsewhere(self) -> Iterator[Problem]:
        """Yield the sequences that an evaluation reads, too."""
        followed = self.followed | self.around_loop
        for cut, (scope, laid) in self.cuts.items():
            text = read_elsewhere(self.analysis, cut, scope, laid.node, followed)
            yield from [(laid.node, laid.scope, text)] if text else []

    def _is_cut_again(self, found: Slice) -> bool:
        """Return whether a loop around the backward call goes through a batch in steps."""
        loops = [loop for loop, _ in self.path.loops if isinstance(loop, ast.For)]
        targets = {part.id for loop in loops for part in walk(loop.target) if isinstance(part, ast.Name)}
        bounds = bounds_of(found.node)
        parts = walk(bounds[0]) if bounds is not None else ()
        return any(isinstance(part, ast.Name) and part.id in targets for part in parts)

    def _is_choice_of_draw(self, node: ast.Subscript, scope: Scope) -> bool:
        """Return whether indices that are drawn choose from data that are drawn in the loop as well."""
        if isinstance(node.slice, (ast.Tuple, ast.Slice, ast.Constant)) or not self._has_batch(node.slice, scope):
            return False
        return any(
            origin.node in self.loop_nodes and size_of(self.analysis, origin.node, origin.scope) is not None
            for origin in origins(self.analysis, [Origin(node.value, scope)])
        )

    def _note_order(self, call: ast.Call, scope: Scope) -> None:
        if any(self._is_of_batch(part, scope) for part in call.args):
            return
        if has_unseeded_generator(self.analysis, call, scope):
            text = f"{ast.unparse(call)} draws from a generator without a seed, another order in each process"
            self.problems.append((call, scope, text))
        self.orders[call] = scope

    def _note_random(self, node: ast.expr, scope: Scope, size: ast.expr) -> None:
        if isinstance(size, ast.Starred) or not is_number(size, scope):
            self.problems.append((node, scope, f"how many samples {ast.unparse(node)} draws is not written down"))
        elif not is_by_rows(self.analysis, node, scope, size):
            text = f"which dimension of {ast.unparse(node)} is that of the samples cannot be told"
            self.problems.append((node, scope, text))
        elif isinstance(node, ast.ListComp) and follows_loop(self.project, node, scope, self.loop_nodes):
            self.problems.append((node, scope, f"how {ast.unparse(node)} makes a batch is not known"))
        elif changed := self._is_chosen_by_training(node, scope):
            self.problems.append((node, scope, f"{ast.unparse(node)} draws from {changed}"))
        else:
            self.batches[node] = Draw(node, scope, ((size, scope),), RANDOM)

    def _is_chosen_by_training(self, node: ast.expr, scope: Scope) -> str:
        """Return what of the training a draw depends on: a buffer that it fills, what its model computes."""
        drawn = (Origin(part, scope) for part in drawn_from(self.analysis, node, scope))
        for origin in origins(self.analysis, drawn, lambda found: list(inputs(self.analysis, found))):
            if origin.node in self.model_calls:
                return "what the model has computed"
            is_variable = isinstance(origin.node, (ast.Name, ast.Attribute)) and is_followed(origin.node)
            if is_variable and variables_of(self.analysis, origin.node, origin.scope) & self.filled:  # type: ignore[arg-type]
                return f"{ast.unparse(origin.node)}, which changes while it trains"
        return ""

    def _note_slice(self, found: Slice) -> None:
        problem = found.problem
        if not problem and not cuts_samples(self.analysis, found, self.loop_nodes):
            problem = UNCLEAR.format(ast.unparse(found.node))
        if problem:
            self.problems.append((found.node, found.scope, problem))
        else:
            self.batches[found.node] = Draw(found.node, found.scope, found.sizes, SLICE)

    def _is_of_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a size is that of a batch which was drawn already: x.shape[0], len(x)."""
        return any(
            self._has_batch(part, origin.scope)
            for origin in origins(self.analysis, [Origin(node, scope)], lambda o: list(inputs(self.analysis, o)))
            if is_about_shape(origin.node)
            for part in measured(origin.node)
        )

    def _has_batch(self, node: ast.expr, scope: Scope, through: Through | None = None) -> bool:
        """Return whether an expression is computed from what is drawn for a batch."""
        for origin in origins(self.analysis, [Origin(node, scope)], through or self._to_batch):
            found, where = origin.node, origin.scope
            if isinstance(found, ast.Call) and self.analysis.called(found, where) & OWN_SAMPLES:
                return True
            if found in self.loop_nodes and not isinstance(found, ast.AugAssign):
                if size_of(self.analysis, found, where) is not None:
                    return True
                if slice_of(self.analysis, found, where, self.loop_nodes) is not None:
                    return True
        return False

    def _to_batch(self, origin: Origin) -> list[Origin] | tuple[()]:
        return () if is_about_shape(origin.node) else list(inputs(self.analysis, origin))

    def _to_indices(self, origin: Origin) -> list[Origin]:
        """Follow to what samples are chosen by, and not to what has been chosen: of data[rows] to data."""
        index = origin.node.slice if isinstance(origin.node, ast.Subscript) else None
        return [part for part in self._to_batch(origin) if part.node is not index]

    def _drawn_by_sample(self) -> Iterator[Problem]:
        """Yield the draws that are made once for each sample of a batch, of so many numbers as the sample needs."""
        for node, scope, sizes in ((d.node, d.scope, d.sizes) for d in self.batches.values() if d.kind == RANDOM):
            is_measured = any(is_about_shape(part) for part in walk(sizes[0][0]))
            if isinstance(sizes[0][0], ast.Constant) or (is_named(self.analysis, *sizes[0]) and not is_measured):
                continue
            if is_repeated(self.analysis, node, scope, self.around, self.followed):
                yield node, scope, f"{ast.unparse(node)} is drawn again for each sample of a batch"

    def _kept_by_sample(self) -> Iterator[Problem]:
        """Yield the places that store something for each sample of a batch: bank[indices] = features."""
        for node, scope in self.project.in_batches.of(ast.Subscript):
            if not isinstance(node.ctx, ast.Store):
                continue
            if self._has_batch(node.slice, scope) and not self._is_made_per_batch(node.value, scope):
                yield node, scope, f"{ast.unparse(node)} keeps what each process has for its own samples"

    def _cut_from_filled(self) -> Iterator[Problem]:
        """Yield the choices of samples from what the training itself fills by its model: a rollout of a policy."""
        for node, scope in self.chosen.items() if self.batches else ():
            is_by_key = any(map(is_dict, self.analysis.evaluate(node.value, scope)))  # and not by samples
            if is_by_key or (node not in self.batches and not self._is_chosen_by_batch(node.slice, scope)):
                continue
            if is_filled_by_model(self.project, node.value, scope, self.model_calls):
                text = f"{ast.unparse(node)} chooses from what the loop itself fills by the model, as in reinforcement "
                yield node, scope, f"{text}learning with an environment: each process has samples of its own there"
                return

    def _is_chosen_by_batch(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether indices are those of a batch, or are computed from them: `i` of `for i in rows`."""
        found = origins(self.analysis, [Origin(node, scope)], self._to_indices)
        return any(origin.node in self.batches for origin in found) or self._has_batch(node, scope, self._to_indices)

    def _is_made_per_batch(self, node: ast.expr, scope: Scope) -> bool:
        made = origins(self.analysis, [Origin(node, scope)])
        is_made = any(isinstance(part.node, ast.Call) and part.node in self.loop_nodes for part in made)
        return is_made or self._has_batch(node, scope)

"""A training project, read without importing or running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path

from retrofit.analysis.edits import Edit
from retrofit.analysis.files.modules import Modules
from retrofit.analysis.files.runtime_names import FILE_MODULE, RUNTIME
from retrofit.analysis.files.source import Place, Source, SourceError
from retrofit.analysis.flow.calls.graph import nodes_run
from retrofit.analysis.flow.reachability import names_called
from retrofit.analysis.memory import answered_once
from retrofit.analysis.nodes import Places, children
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .data.batch_sizes import BatchSizes
from .data.batch_values import BatchValues
from .data.draws.draw import Draws
from .data.draws.draws import find_draws
from .data.draws.filled import is_filled_by_model
from .data.draws.slices.cut_batches import gives_cut, is_of_rollout
from .data.loaders import Loader, find_loaders
from .distributed.distribution import Distribution, find_distribution, leads_to_collective
from .distributed.rank_ordered import runs_in_turn
from .distributed.ranks.ranks import Ranks
from .evaluation import Evaluation, find_evaluations
from .evaluation.measurements import Measurement, find_measurements
from .files.guards import Guard, find_guards
from .files.outputs import TRACK, Output, find_outputs
from .files.preparations import Preparation, find_preparations
from .files.run_numbers import Numbered, numbered_names
from .launch.arguments import Parsing, find_parsings
from .library import TORCH
from .loops import Path as TrainingPath
from .loops import reached_paths
from .losses.divisions import Division, find_divisions
from .losses.flow import loss_parts
from .losses.wrapped import functions_run_inside
from .model.models import Model, find_models, reachable_from_loops
from .model.wrapping import Wrapping
from .optimizer.fitted_tensors import fitting_optimizers
from .optimizer.optimizers import Optimizer, find_optimizers

__all__ = ["Place", "Project", "Source", "SourceError", "read_project"]


class Project:
    """The facts about a project. Each is worked out when it is first asked for.

    `runtime` is the module from which a converted text imports the runtime: the library where the project has a module
    of its own with the name of the runtime file. With `takes_ready_batches`, objects and generators that give batches
    and hold no loader count as loaders, where a training draws from nothing else.
    """

    def __init__(self, modules: Modules, runtime: str = FILE_MODULE, takes_ready_batches: bool = False) -> None:
        self.takes_ready_batches = takes_ready_batches
        self.modules = modules
        self.runtime = RUNTIME if modules.find(FILE_MODULE, 0, modules.entry) else runtime
        self.analysis = Analysis(self.modules, TORCH)

    @property
    def entry(self) -> Source:
        return self.modules.entry

    @property
    def sources(self) -> list[Source]:
        return list(self.modules.sources.values())

    @cached_property
    def paths(self) -> list[TrainingPath]:
        return reached_paths(self.analysis)

    @cached_property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers, but for those that fit a tensor to each batch of an evaluation, or of a step."""
        fitting = fitting_optimizers(self.analysis)
        return [optimizer for optimizer in find_optimizers(self.analysis) if optimizer.call not in fitting]

    @cached_property
    def models(self) -> list[Model]:
        return find_models(self.analysis, self.paths, self.optimizers)

    def with_texts(self, texts: Mapping[Path, bytes], parsed: Mapping[Path, Source] | None = None) -> Project:
        """Return this project as it is when some of its files hold other texts, of which some are `parsed`."""
        return Project(self.modules.with_texts(texts, parsed or {}), self.runtime, self.takes_ready_batches)

    def with_ready_batches(self) -> Project:
        """Return this project with objects that give batches as its loaders."""
        return Project(self.modules, self.runtime, takes_ready_batches=True)

    def calls_any(self, names: Collection[str]) -> bool:
        """Return whether the code that runs calls one of these functions, given by their full names."""
        return not names_called(self.analysis).isdisjoint(names)

    @cached_property
    def distribution(self) -> Distribution:
        return find_distribution(self.analysis)

    def leads_to_collective(self, call: ast.Call, scope: Scope) -> bool:
        """Return whether a call waits for all processes: itself, or in a function of the project that it runs."""
        return leads_to_collective(self.analysis, self.distribution, call, scope)

    @cached_property
    def ranks(self) -> Ranks:
        return Ranks(self.analysis)

    @cached_property
    def measurements(self) -> list[Measurement]:
        return list(find_measurements(self.analysis, self.loaders, self.models))

    @cached_property
    def evaluations(self) -> list[Evaluation]:
        variables = {model.variable for model in self.models}
        return find_evaluations(self.analysis, self.loaders, variables, self.outputs)

    @cached_property
    def batch_sizes(self) -> BatchSizes:
        return BatchSizes(self.analysis, self.loaders, self.draws)

    @cached_property
    def draws(self) -> Draws:
        """The batches that the training draws itself, without a loader."""
        return find_draws(self)

    @cached_property
    def divisions(self) -> list[Division]:
        """The divisions of training losses by something of the batch."""
        parts = dict.fromkeys(place for path in self.paths for place in loss_parts(self.analysis, path))
        return list(find_divisions(self.analysis, parts, self.batch_values, self.distribution))

    @cached_property
    def batch_values(self) -> BatchValues:
        steps = [loop for path in self.paths for loop, _ in path.loops]
        return BatchValues(self.analysis, self.loaders, self.models, self.draws.nodes | self.draws.calls, steps)

    @cached_property
    def wrapping(self) -> Wrapping:
        return Wrapping(self.analysis, self.distribution)

    @cached_property
    def in_loops(self) -> Places[Scope]:
        """Every node that an epoch of the training runs, with the scope it is in."""
        return reachable_from_loops(self.analysis, self.paths)

    @cached_property
    def nodes_in_loops(self) -> frozenset[ast.AST]:
        return frozenset(node for node, _ in self.in_loops)

    @cached_property
    def in_batches(self) -> Places[Scope]:
        """Every node that is run for a batch of the training, with the scope it is in."""
        found = dict(reachable_from_loops(self.analysis, self.paths, innermost=True))
        waiting = list(found.items())
        while waiting:
            calls = [(node, scope) for node, scope in waiting if isinstance(node, ast.Call)]
            functions = dict.fromkeys(f for call in calls for f in functions_run_inside(self.analysis, *call))
            bodies = [(part, function.scope) for function in functions for part in children(function.node)]
            waiting = [place for place in nodes_run(self.analysis, bodies) if place[0] not in found]
            found.update(waiting)
        return Places(found.items())

    @cached_property
    def nodes_in_batches(self) -> frozenset[ast.AST]:
        return frozenset(node for node, _ in self.in_batches)

    @cached_property
    def parsings(self) -> list[Parsing]:
        return find_parsings(self.analysis)

    @cached_property
    def outputs(self) -> list[Output]:
        return find_outputs(self.analysis)

    @cached_property
    def preparations(self) -> list[Preparation]:
        busy: set[ast.AST] = {call.call for model in self.models for call in model.calls}
        busy |= {
            node for loader in self.loaders for node in (*loader.builders, *(use.expression for use in loader.uses))
        }
        busy |= {frame.node for path in self.paths for frame in path.frames}
        return find_preparations(self.analysis, self.outputs, self.paths, busy)

    @answered_once
    def runs_in_turn(self, scope: Scope, node: ast.AST) -> bool:
        """Return whether rank 0 is done with a node before the others begin, now or in the converted project."""
        return runs_in_turn(self.analysis, scope, node, self._prepared)

    @cached_property
    def _prepared(self) -> set[ast.AST]:
        return {statement for p in self.preparations if not p.is_forced for statement in p.statements}

    @cached_property
    def guards(self) -> dict[Output, Guard]:
        """The outputs that can be left to one process, with the request to do so."""
        return {output: Guard(output) for output in self.guards_with(())}

    def guards_with(
        self, shared: Collection[ast.AST], asked: Collection[Output] | None = None
    ) -> dict[Output, tuple[Edit, ...]]:
        """Return how each output is left to one process, where every rank comes to the statements `shared`.

        Of calls of trackers only those in `asked`, if that is given: a disabled run needs no guard.
        """
        outputs = [output for output in self.outputs if not self.runs_in_turn(output.scope, output.call)]
        if asked is not None:
            outputs = [output for output in outputs if output.kind != TRACK or output in asked]
        moved = {statement for p in self.preparations for statement in p.statements}
        return find_guards(self.analysis, outputs, moved, shared)

    @cached_property
    def numbered_names(self) -> list[Numbered]:
        return numbered_names(self.analysis, self.outputs)

    @cached_property
    def loaders(self) -> list[Loader]:
        found = find_loaders(self.analysis, self.paths, self.takes_ready_batches)
        return [loader for loader in found if not self.takes_ready_batches or not self._is_rollout(loader)]

    def _is_rollout(self, loader: Loader) -> bool:
        """Return whether what gives batches holds what the model has computed in the training, as a policy does."""
        calls = {call.call for model in self.models for call in model.calls}
        if loader.builders:
            return False
        uses = [(use.expression, use.scope) for use in loader.uses]
        if any(is_filled_by_model(self, *use, calls) for use in uses):
            return True
        return any(gives_cut(self.analysis, *use) for use in uses) and is_of_rollout(self)


def read_project(entry: Path, root: Path | None = None) -> Project:
    """Read the project of a script; `root` is the folder that it is started from (default: the script's).

    Raises SourceError when the script cannot be read.
    """
    entry = Path(os.path.realpath(entry))  # unlike Path.resolve it takes a link to itself as it is
    return Project(Modules(entry, Path(os.path.realpath(root or entry.parent))))

"""Samples that a training chooses at random among those of the same batch: partners for mixup, negatives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from retrofit.analysis.calls import argument_for
from retrofit.analysis.scopes import Scope
from retrofit.training.torch_api.data import LOADERS
from retrofit.training.torch_api.draws import INDICES, ORDERS, SHUFFLES, of_common_stream
from retrofit.training.torch_api.randomness import MIXERS, TORCH

from ..losses.gathering.gathered import reader_of_values
from ..losses.gathering.values import SIZE
from .mixed_by_libraries import collated, is_mixer

if TYPE_CHECKING:
    from retrofit.training import Project

WITH_BOUNDS = ("randint", "integers")  # their arguments are the lowest and the highest number


def drawn_partners(project: Project) -> Iterator[tuple[ast.Call, Scope]]:
    """Yield the draws, for a batch, among the numbers of its samples: torch.randperm(len(images)).

    Not those among the samples of all ranks, where these are gathered. Also what a library mixes by its own draws.
    """
    for call, where in collated(project):
        names = {of_common_stream(name) for name in project.analysis.called(call, where)}
        is_made = bool(names & (LOADERS | MIXERS))  # the loader is given a mixer
        if is_made or names & (ORDERS | SHUFFLES) or is_mixer(project.analysis, call.func, where):
            yield call, where
    seen: set[ast.AST] = set()
    for node, scope in project.in_batches.of(ast.Call):
        if node in seen:
            continue
        seen.add(node)
        if is_mixer(project.analysis, node.func, scope):
            yield node, scope
            continue
        names = {of_common_stream(name) for name in project.analysis.called(node, scope)}
        chosen_from = _chosen_from(node, names) if names & (ORDERS | SHUFFLES | INDICES) else None
        if chosen_from is not None and reader_of_values(project).value(chosen_from, scope).kind == SIZE:
            yield node, scope


def _chosen_from(call: ast.Call, names: set[str]) -> ast.expr | None:
    """Return what a draw chooses from: a number of things, or the things."""
    if any(name.endswith(WITH_BOUNDS) for name in names):
        needed = 3 if f"{TORCH}.randint" in names else 2
        return argument_for(call, ["low", "high"] if len(call.args) >= needed else ["high"], "high")
    return call.args[0] if call.args else None

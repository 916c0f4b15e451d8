"""Torch, as the analysis of plain Python is told of it."""

from __future__ import annotations

from retrofit.analysis.library import PYTHON, Library
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis

from .loops import training_paths
from .model.modules import is_model
from .torch_api import data, distributed, launch, losses, modules, randomness, runtime, tensors


def _trainings(analysis: Analysis) -> list[Scope]:
    """Return the functions, or scripts, from which the training loops are reached."""
    return [path.frames[-1].scope for path in training_paths(analysis)]


TORCH = Library(
    same_functions=data.SAME_ITERABLE,
    picking=randomness.PICKS_ONE,
    picking_several=randomness.PICKS_SEVERAL,
    calling={runtime.DRAW_TOGETHER},
    same_methods=modules.SAME_OBJECT,
    creating_methods=modules.CREATING,
    creating_functions=launch.INSTANTIATES,
    wrappers=modules.PLAIN_WRAPPERS,
    holders=modules.HOLDERS,
    kept_arguments=data.KEPT_ARGUMENTS,
    moving_methods=modules.MOVING,
    filling_methods=modules.FILLING,
    setting_methods=modules.SETS_ATTRIBUTE,
    starting_with_rank=distributed.SPAWNS,
    starting=distributed.STARTS_PROCESS,
    functional_packages=tensors.ARRAY_PACKAGES,
    array_functions=tensors.ARRAY_FUNCTIONS,
    called_from_outside=(*PYTHON.called_from_outside, *modules.CALLED_FROM_OUTSIDE),
    owning_methods=modules.PARAMETERS,
    is_replaced=is_model,
    unknown_member=losses.loss_taken,
    starts=_trainings,
)

"""Calls of experiment trackers, told apart by their full names."""

from __future__ import annotations

from retrofit.training.torch_api.trackers import MLFLOW_SENDS, MODULES_WITH_RUN, RUN_SENDS, WITHOUT_RUN


def is_tracking(name: str) -> bool:
    """Return whether a function, by its full name, sends something to a tracker, or shows it."""
    module, function = name.partition(".")[0], name.rpartition(".")[2]
    if name in WITHOUT_RUN:
        return True
    if module == "mlflow":
        return function in MLFLOW_SENDS
    return module in MODULES_WITH_RUN and function in RUN_SENDS and not name.startswith("wandb.init.")


def tool_of_run(name: str) -> str:
    """Return the tool whose one run a function writes to: `wandb` of wandb.config.update; "" for all others."""
    module = name.partition(".")[0]
    return module if module in MODULES_WITH_RUN and name not in WITHOUT_RUN else ""

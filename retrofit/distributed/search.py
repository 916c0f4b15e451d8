"""Searches for settings (Optuna), one study, on rank 0, with all ranks in each trial; finders of learning rates.

Rank 0 asks the sampler and the pruner, and the others get its answers. Outside a group everything is the identity.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from .collectives import broadcast_object
from .data.batch import reduce_loss
from .evaluation import is_sharing
from .output import answer_of_main
from .process.process_group import get_world_size, is_main_process

__all__ = ["open_study", "run_trials", "whole_batch_value"]


def open_study(open_one: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `open_one(*args, **kwargs)` on rank 0; on the others a study in memory with the same trials.

    `open_one`: optuna.create_study or optuna.load_study. A storage is opened by rank 0 alone. Collective: every rank.
    """
    if get_world_size() == 1:
        return open_one(*args, **kwargs)
    study = open_one(*args, **kwargs) if is_main_process() else None
    facts: Any = None if study is None else (study.study_name, study.directions, study.trials)
    name, directions, trials = broadcast_object(facts)
    if study is None:
        study = sys.modules["optuna"].create_study(study_name=name, directions=directions)
        study.add_trials(trials)
    return study


def run_trials(optimize: Callable[..., Any], func: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Run `study.optimize(func, ...)` on rank 0, and each of its trials on every rank with the same settings.

    `optimize`: the method of a study that `open_study` gave. What `func` returns on rank 0 counts, so it has to be of
    all ranks' samples. Afterwards the study has the same trials on every rank. Collective: every rank. Raises
    ValueError for several trials at a time.
    """
    if get_world_size() == 1:
        optimize(func, *args, **kwargs)
        return
    jobs = kwargs.get("n_jobs", args[2] if len(args) > 2 else 1)
    if jobs != 1:
        raise ValueError(f"n_jobs={jobs}: the ranks train one trial at a time together; leave n_jobs out")
    study = optimize.__self__  # type: ignore[attr-defined]
    if is_main_process():
        optimize(lambda trial: func(SharedTrial(trial, broadcast_object(trial.number))), *args, **kwargs)
        broadcast_object((None, study.trials))
    else:
        _follow(study, func, kwargs.get("catch", args[3] if len(args) > 3 else ()))


def _follow(study: Any, func: Callable[..., Any], catch: Any) -> None:
    """Run rank 0's trials until it has no more, then add them to this rank's study."""
    ended: tuple[Any, ...] = (sys.modules["optuna"].TrialPruned, *(catch if isinstance(catch, tuple) else (catch,)))
    while True:
        message: Any = broadcast_object(None)
        if not isinstance(message, int):
            study.add_trials(message[1][len(study.trials) :])
            return
        with suppress(*ended):
            func(SharedTrial(None, message))


class SharedTrial:
    """A trial of rank 0's study, for every rank: `trial` is None on the others.

    `suggest_*` and `should_prune` are collective: every rank must call them, in the same order.
    """

    def __init__(self, trial: Any, number: int) -> None:
        self._trial = trial
        self.number = number
        self.params: dict[str, Any] = {}
        self.user_attrs: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("suggest_"):
            raise AttributeError(f"a trial that the ranks share has no {name}")

        def suggest(parameter: str, *args: Any, **kwargs: Any) -> Any:
            value = answer_of_main(lambda: getattr(self._trial, name)(parameter, *args, **kwargs))
            self.params[parameter] = value
            return value

        return suggest

    def should_prune(self) -> bool:
        """Return whether rank 0's pruner ends the trial. Collective: every rank."""
        return bool(answer_of_main(lambda: self._trial.should_prune()))

    def report(self, value: float, step: int) -> None:
        """Tell the pruner of rank 0 an intermediate value."""
        if self._trial is not None:
            self._trial.report(value, step)

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value with the trial."""
        self.user_attrs[key] = value
        if self._trial is not None:
            self._trial.set_user_attr(key, value)


def whole_batch_value(criterion: Callable[..., Any]) -> Callable[..., Any]:
    """Return `criterion` with the value of the batch of all ranks and the gradient of this rank's, which DDP averages.

    For a library that calls backward and decides by the value itself, as a finder of learning rates: all ranks decide
    the same. `criterion`: a mean over samples. Outside a group it is returned. Every rank calls what this returns.
    """

    def of_all_ranks(*args: Any, **kwargs: Any) -> torch.Tensor:
        loss: torch.Tensor = criterion(*args, **kwargs)
        return loss + (reduce_loss(loss) - loss).detach() if loss.requires_grad and not is_sharing() else loss

    return criterion if get_world_size() == 1 else of_all_ranks

"""A study of Optuna for all ranks: rank 0 decides, every rank runs each trial and knows all after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import optuna
import pytest

from retrofit.distributed import get_rank, is_main_process
from retrofit.distributed.search import open_study, run_trials

optuna.logging.set_verbosity(optuna.logging.WARNING)


def objective(trial: Any) -> float:
    x = trial.suggest_float("x", -2, 2)
    kind = trial.suggest_categorical("kind", ["a", "b"])
    assert trial.params == {"x": x, "kind": kind}
    for step in range(3):
        trial.report(x * x + step, step)
        if trial.should_prune():
            raise optuna.TrialPruned()
    trial.set_user_attr("step", step)
    if trial.number == 1:
        raise ArithmeticError("diverged")
    return x * x + 1000 * get_rank()  # what rank 0 returns counts


def run_study(storage: str | None = None) -> Any:
    study = open_study(
        optuna.create_study,
        storage=storage,
        study_name="lines",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
    )
    run_trials(study.optimize, objective, n_trials=8, catch=ArithmeticError)
    return [(trial.number, trial.state.name, trial.params, trial.value, trial.user_attrs) for trial in study.trials]


def continue_study(storage: str) -> list[int]:
    run_study(storage)
    rank = get_rank()
    opened = not is_main_process() or Path(storage.partition("///")[2]).exists()
    assert opened, f"rank {rank} sees no storage"
    return [len(run_study(storage)), os.getpid()]


def run_two_at_a_time() -> str:
    study = open_study(optuna.create_study)
    with pytest.raises(ValueError, match="n_jobs=2: the ranks train one trial at a time") as raised:
        run_trials(study.optimize, objective, n_trials=2, n_jobs=2)
    return str(raised.value)


def test_all_ranks_run_the_trials_of_one_process(ranks: Any) -> None:
    alone = run_study()
    states = [state for _, state, *_ in alone]
    assert {"COMPLETE", "PRUNED", "FAIL"} == set(states)
    assert ranks(2).run(run_study) == [alone, alone]


def test_a_stored_study_is_continued_by_rank_0_and_known_to_all(ranks: Any, tmp_path: Path) -> None:
    results = ranks(2).run(continue_study, f"sqlite:///{tmp_path}/study.db")
    assert [number for number, _ in results] == [16, 16]


def test_trials_at_a_time_are_refused(ranks: Any) -> None:
    assert len(ranks(2).run(run_two_at_a_time)) == 2

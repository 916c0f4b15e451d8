"""Searches for settings: of Optuna all ranks train each trial, in whatever form; others are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

from retrofit.cli import main

HEAD = """\
import argparse
from functools import partial

import optuna
import torch
import wandb
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(width, lr, args=None):
    model = nn.Linear(4, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
    return loss.item()


def objective(trial, args=None):
    return train(trial.suggest_int("width", 1, 4), trial.suggest_float("lr", 0.01, 0.1), args)


class Objective:
    def __call__(self, trial):
        return objective(trial)


def search(function, trials):
    study = optuna.create_study(direction="minimize", storage="sqlite:///study.db", load_if_exists=True)
    study.optimize(function, n_trials=trials)
    return study


def sweep_run():
    wandb.init()
    train(wandb.config.width, wandb.config.lr)


"""
FORMS = {
    "a function": "study = optuna.create_study()\nstudy.optimize(objective, n_trials=3)\n",
    "a lambda": "study = optuna.create_study()\nstudy.optimize(lambda trial: objective(trial, 1), 3)\n",
    "partial": "study = optuna.create_study()\nstudy.optimize(partial(objective, args=1), n_trials=3)\n",
    "an object": "study = optuna.create_study()\nstudy.optimize(Objective(), n_trials=3)\n",
    "by keyword": "study = optuna.load_study(study_name='a')\nstudy.optimize(func=objective, n_trials=3)\n",
    "in a function": "search(objective, 3)\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_all_ranks_train_each_trial(form: str, tmp_path: Path) -> None:
    text = "\n".join(converted(tmp_path, HEAD + FORMS[form]))
    assert "rd.search.open_study(optuna." in text
    assert "rd.search.run_trials(study.optimize, " in text
    assert "model = rd.distribute_model(model)" in text
    assert "loader = rd.distribute_loader(loader)" in text
    assert text.index("rd.setup_distributed()") < text.index("rd.search.open_study(") or form == "in a function"
    assert text.count("rd.setup_distributed()") == 1, "the group is joined once, not by each trial"


def test_only_a_script_with_a_search_gets_it_in_the_runtime_file(tmp_path: Path) -> None:
    for name, lines in {"search": FORMS["a function"], "plain": "train(2, 0.1)\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(HEAD + lines)
        assert main(["convert", str(tmp_path / name / "train.py"), "--write"]) == 0
        runtime = (tmp_path / name / "multigpu.py").read_text()
        assert ("def run_trials(" in runtime) == (name == "search")


def test_a_sweep_that_runs_the_training_is_refused(tmp_path: Path) -> None:
    planned = conversion(tmp_path, HEAD + "wandb.agent('sweep', function=sweep_run, count=3)\n")
    assert [finding.code for finding in planned.refusals] == ["RF510"]

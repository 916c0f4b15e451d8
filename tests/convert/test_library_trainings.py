"""Libraries that train a network whole, next to the training of the script: every process would do so again."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
IMPORT


def before(kind):
    net = nn.Linear(3, 1)
    if kind == "library":
        CALL


PLACE
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(20, 3)), 4, shuffle=True)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
"""
TRAININGS = {
    "a method": ("from skorch import NeuralNetRegressor", "NeuralNetRegressor(nn.Linear).fit([0], [1])"),
    "a function": ("from cellpose import models, train", "train.train_seg(models.CellposeModel().net, images=[])"),
    "settings alone": ("from ultralytics import YOLO", "YOLO('small.pt').train(data='data.yaml', epochs=3)"),
    "an agent": ("from stable_baselines3 import PPO", "PPO('MlpPolicy', 'CartPole-v1').learn(1000)"),
    "names of a star": ("from fastai.vision.all import *", "Learner(kind, net).fit_one_cycle(3)"),
    "a model for a package that is not known": ("import unknown", "unknown.Trainer().fit(Net(), kind)"),
}
NETWORK = "\n\nclass Net(nn.Module):\n    def forward(self, x):\n        return x\n"
OTHERS = {
    "a classical estimator": ("from sklearn.svm import SVC", "SVC().fit([[0], [1]], [0, 1])"),
    "a mode": ("from sentence_transformers import SentenceTransformer", "SentenceTransformer('small').train(False)"),
    "data for a package that is not known": ("import unknown", "unknown.Scaler().fit([0, 1])"),
    "a split": ("from sklearn.model_selection import train_test_split", "train_test_split([0, 1])"),
}


def script(imported: str, call: str, place: str = "before(*sys.argv[1:2])") -> str:
    text = SCRIPT.replace("CALL", call).replace("PLACE", place)
    return text.replace("IMPORT", imported + (NETWORK if "Net()" in call else ""))


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_training_that_an_option_chooses_is_for_one_process(tmp_path: Path, kind: str) -> None:
    lines = converted(tmp_path, script(*TRAININGS[kind]))
    call = lines.index(TRAININGS[kind][1])
    assert lines[call - 1].startswith('rd.process_group.one_process_only("')


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_training_that_is_always_run_refuses_the_script(tmp_path: Path, kind: str) -> None:
    result = conversion(tmp_path, script(TRAININGS[kind][0], TRAININGS[kind][1], TRAININGS[kind][1]))
    assert [finding.kind for finding in result.refusals] == ["library-training"]


@pytest.mark.parametrize("kind", OTHERS)
def test_what_trains_no_network_is_left_alone(tmp_path: Path, kind: str) -> None:
    lines = converted(tmp_path, script(*OTHERS[kind]))
    assert not any("one_process_only" in line for line in lines)


def test_a_training_that_is_never_reached_is_left_alone(tmp_path: Path) -> None:
    lines = converted(tmp_path, script(*TRAININGS["a method"], place=""))
    assert not any("one_process_only" in line for line in lines)

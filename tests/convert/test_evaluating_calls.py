"""A function that draws batches and trains in one call, and evaluates in another: there every rank has whole ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

START = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
np.random.seed(0)
random.seed(0)
size = 6
x = torch.randn(50, 4)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BY_LIST = """\
samples = [(row, int(label)) for row, label in zip(x, y)]


def run(data, order, optimizer=None, n=size):
    losses, hits, seen = [], 0, 0
    for i in range((len(order) + (n - 1) * (optimizer is None)) // n):
        chosen = order[i * n : (i + 1) * n]
        inputs = torch.stack([data[k][0] for k in chosen])
        labels = torch.tensor([data[k][1] for k in chosen])
        out = model(inputs)
        loss = F.cross_entropy(out, labels)
        accuracy = (out.argmax(1) == labels).float().mean()
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(np.array([loss.item(), accuracy.item()]) * len(chosen))
        hits += (out.argmax(1) == labels).sum().item()
        seen += len(chosen)
    if optimizer is None:
        assert seen == len(order)
    return [*np.sum(np.array(losses), 0) / seen, hits / seen]


order = list(range(37))
for epoch in range(2):
    random.shuffle(order)
    trained = run(samples[:37], order, optimizer)
    model.eval()
    tested = run(samples[37:], list(range(13)))
    model.train()
    print("shown", *trained, *tested)
"""
BY_FLAG = """\
class Runner:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def epoch(self, x, y, train=True):
        self.model.train(train)
        order = np.random.permutation(len(x)) if train else np.arange(len(x))
        total, scores, targets = 0.0, [], []
        for start in range(0, len(x), size):
            rows = order[start : start + size]
            out = self.model(x[rows])
            labels = y[rows]
            loss = F.cross_entropy(out, labels)
            if train:
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            total += loss.item() * len(rows)
            scores.append(out[:, 1].detach())
            targets += [int(label) for label in labels]
        scores = torch.cat(scores).numpy()
        if len(targets) != len(x) or len(scores) != len(x):
            raise ValueError("some are missing")
        return total / len(x), 1 + float(np.median(scores)), sum(targets)


runner = Runner(model, optimizer)
for epoch in range(2):
    trained = runner.epoch(x[:37], y[:37])
    with torch.no_grad():
        tested = runner.epoch(x[37:], y[37:], train=False)
    print("shown", *trained, *tested)
"""
IN_STEPS = """\
def run(data, labels, steps, train):
    total = 0.0
    for i in range(steps):
        loss = F.cross_entropy(model(data[i * size : (i + 1) * size]), labels[i * size : (i + 1) * size])
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item()
    return total / steps


for epoch in range(2):
    order = torch.randperm(36)
    steps = len(order) // size
    trained = run(x[:36][order], y[:36][order], steps, True)
    STEPS
    tested = run(x[36:48], y[36:48], tests, False)
    print("shown", trained, tested)
"""
OF_TESTS = "tests = 12 // size"


@pytest.mark.parametrize("text", [BY_LIST, BY_FLAG, IN_STEPS.replace("STEPS", OF_TESTS)])
def test_it_trains_and_evaluates_as_one_process(tmp_path: Path, launcher: Launcher, text: str) -> None:
    trains_as_one(tmp_path, START + text, launcher, world_sizes=(2, 3), rel=1e-5)


def test_what_all_ranks_evaluate_is_not_listed(tmp_path: Path) -> None:
    for text in (BY_LIST, BY_FLAG):
        result = conversion(tmp_path, START + text)
        assert not [finding for finding in result.listed if "rank 0's share" in finding.message]


def test_the_steps_of_an_evaluation_stay(tmp_path: Path) -> None:
    lines = converted(tmp_path, START + IN_STEPS.replace("STEPS", OF_TESTS))
    assert "steps = len(order) // rd.data.batch_of_ranks(size)" in lines and OF_TESTS in lines
    assert "tested = rd.data.whole_batches(run)(x[36:48], y[36:48], tests, False)" in lines


def test_steps_that_both_are_given_refuse_it(tmp_path: Path) -> None:
    (refusal,) = conversion(tmp_path, START + IN_STEPS.replace("STEPS", "tests = steps - 4")).refusals
    assert "run(x[36:48], y[36:48], tests, False) gives an evaluation its batches" in refusal.refusal

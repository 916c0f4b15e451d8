"""A choice that a training draws at random for each batch is rank 0's for all ranks, or is listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion
from convert.training_runs import trains_as_one
from verify.projects.launch import Launcher

HEAD = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Samples(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        x = torch.randn(4)
        if random.random() < 0.5:
            x = -x
        return x, index % 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x, ratio=0.0):
        MODEL
        return self.first(x)


class Entropy:
    def compute(self, out, y):
        return F.cross_entropy(out, y)


class Margin:
    def compute(self, out, y):
        return F.multi_margin_loss(out, y)


criteria, named = [Entropy(), Margin()], {"entropy": Entropy(), "margin": Margin()}


def losses(out, y):
    return F.cross_entropy(out, y), F.multi_margin_loss(out, y)


def is_sharp(chance):
    return random.random() < chance


rng = np.random.default_rng()
seeded = random.Random(0)
start = random.random()
size = 4
loader = DataLoader(Samples(), batch_size=size)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        out = model(x)
        first, second = losses(out, y)
        loss = first
        STEP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for x, y in loader:
        AFTER
"""
MODEL = {
    "python": "if random.random() < ratio: x = x + self.second(x).sum()",
    "torch": "x = 2 * x if self.training and torch.rand(1).item() < 0.5 else x",
    "numpy": "if np.random.rand() < ratio: x = 2 * x",
}
STEP = {
    "branch": "if np.random.uniform() > 0.5: loss = second",
    "expression": "loss = first if random.random() > 0.5 else second",
    "variable": "flip = torch.rand(()) < 0.5; loss = second if flip else first",
    "integer": "if random.randint(0, 1) == 0: loss = second",
    "function": "loss = random.choice([F.cross_entropy, F.multi_margin_loss])(out, y)",
    "function by name": "f = random.choice([F.cross_entropy, F.multi_margin_loss]); loss = f(out, y)",
    "object": "loss = random.choice(criteria).compute(out, y)",
    "object by name": "criterion = random.sample(criteria, 1)[0]; loss = criterion.compute(out, y)",
    "object by index": "loss = criteria[np.random.randint(2)].compute(out, y)",
    "object by key": "kind = random.choice(['entropy', 'margin']); loss = named[kind].compute(out, y)",
    "number of times": "for _ in range(random.randint(1, 3)): loss = loss + second",
    "a shuffled list": "random.shuffle(criteria); loss = criteria[0].compute(out, y)",
    "an order": "for i in np.random.permutation(2): loss = loss + criteria[i].compute(out, y) * (i + 1)",
    "some of a list": "for criterion in random.sample(criteria, 1): loss = criterion.compute(out, y)",
    "short circuit": "random.random() < 0.5 and x.mul_(2)",
}
LISTED = {
    "once for each by their number": "for i in range(size): x[i] = -x[i] if random.random() < 0.5 else x[i]",
    "one for each by their number": "x = torch.stack([-x[i] if random.random() < 0.5 else x[i] for i in range(size)])",
    "by the number of its samples": "if random.randint(0, len(x)) > 2: loss = second",
    "where only some ranks come": "if y.sum() > 2:\n            if random.random() < 0.5: loss = second",
}
SAME = {
    "generator that all ranks get": "if rng.random() < 0.5: loss = second",
    "seeded generator": "if seeded.random() < 0.5: loss = second",
    "before the training": "if start < 0.5: loss = second",
    "of all ranks": "if rd.collectives.broadcast_object(random.random()) < 0.5: loss = second",
    "of the steps": "if epoch % 2: loss = second",
    "an order of the samples": "rows = list(range(len(x))); np.random.shuffle(rows)",
    "of each sample": "x = torch.stack([row.flip(0) if random.random() < 0.5 else row for row in x])",
    "object by step": "loss = criteria[epoch % 2].compute(out, y)",
    "method of values": "x = x + torch.randn(4).abs()",
    "values": "x = x + torch.randn(4)",
    "as often as a draw is long": "n, t = torch.randn(4, 2).size(); loss = loss + sum(second for _ in range(t))",
    "the shape of a draw": "noise = torch.randn(2, 3)\n        if noise.shape[1] > 2: loss = second",
}


def script(model: str, step: str, after: str = "pass") -> str:
    text = HEAD.replace("MODEL", model).replace("STEP", step).replace("AFTER", after)
    return text.replace("import numpy", "import multigpu as rd\nimport numpy") if "rd." in step else text


def listed(folder: Path, model: str, step: str, after: str = "pass") -> list[str]:
    result = conversion(folder, script(model, step, after))
    assert not result.refusals
    drawn = [f for f in result.findings if f.code == "RF409"]
    found = [f.message for f in result.listed if "draws its own" in f.message or "decides on its own" in f.message]
    return found + ["of rank 0" for _ in drawn]


@pytest.mark.parametrize("choice", MODEL)
def test_a_choice_in_a_model_is_listed(choice: str, tmp_path: Path) -> None:
    (message,) = listed(tmp_path, MODEL[choice], "pass")
    assert "by which it chooses" in message


@pytest.mark.parametrize("choice", STEP)
def test_a_choice_in_a_step_is_that_of_rank_0(choice: str, tmp_path: Path) -> None:
    assert listed(tmp_path, "pass", STEP[choice]) == ["of rank 0"]


@pytest.mark.parametrize("choice", LISTED)
def test_a_choice_that_the_ranks_do_not_make_together_is_listed(choice: str, tmp_path: Path) -> None:
    found = listed(tmp_path, "pass", LISTED[choice])
    assert found
    assert "of rank 0" not in found


def test_a_choice_that_an_evaluation_makes_too_is_listed(tmp_path: Path) -> None:
    step = "if is_sharp(0.5): loss = second"
    after = "print(F.cross_entropy(model(x), y).item() if is_sharp(0.5) else 0)"
    assert listed(tmp_path, "pass", step) == ["of rank 0"]
    assert "of rank 0" not in listed(tmp_path, "pass", step, f"with torch.no_grad(): {after}")


@pytest.mark.parametrize("choice", SAME)
def test_what_is_the_same_on_all_ranks_or_of_a_sample_is_not_listed(choice: str, tmp_path: Path) -> None:
    assert [line for line in listed(tmp_path, "pass", SAME[choice]) if "chooses" in line or "rank 0" in line] == []


UNEVEN = {  # generators with a seed, from which a rank draws for its samples, too; and a choice by them
    "noise": (
        "x = x + seeded.gauss(0, 1) * len(x)\n        y = [seeded.random() for _ in range(len(x))]",
        "seeded.random() < 0.5",
    ),
    "an order": ("numbers = np.random.default_rng(0); order = numbers.permutation(len(x))", "numbers.integers(2)"),
    "rows of noise": ("numbers = np.random.RandomState(0); x = x + numbers.randn(*x.shape)", "numbers.rand() < 0.5"),
    "of some samples": (
        "x = torch.stack([-row if seeded.random() < 0.5 else row for row in x])", "seeded.choice([True, False])",
    ),
    "of torch": (
        "numbers = torch.Generator().manual_seed(1); x = x + torch.randn(x.shape, generator=numbers)",
        "torch.rand(1, generator=numbers).item() < 0.5",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNEVEN)
def test_a_choice_by_a_generator_that_the_samples_use_is_that_of_rank_0(kind: str, tmp_path: Path) -> None:
    drawn, coin = UNEVEN[kind]
    assert "of rank 0" in listed(tmp_path, "pass", f"{drawn}\n        if {coin}: loss = second")


SUMMED = "lambda out, y: F.cross_entropy(out, y, reduction='sum') / 50"
PICKED = {
    "one": "random.choice([F.cross_entropy, SUMMED])",
    "of a generator": "seeded.choice([F.cross_entropy, SUMMED])",
    "of the values of a dict": "seeded.choice(list({'a': F.cross_entropy, 'b': SUMMED}.values()))",
    "by a key": "{'a': F.cross_entropy, 'b': SUMMED}[seeded.choice(['a', 'b'])]",
    "several": "random.choices([F.cross_entropy, SUMMED], [1, 2])[0]",
    "of numpy": "np.random.choice([F.cross_entropy, SUMMED])",
    "with a name": "seeded.choice([('a', F.cross_entropy), ('b', SUMMED)])[1]",
}


@pytest.mark.parametrize("kind", PICKED)
def test_a_loss_that_is_chosen_at_random_is_read(kind: str, tmp_path: Path) -> None:
    step = f"loss = {PICKED[kind].replace('SUMMED', SUMMED)}(out, y)"
    result = conversion(tmp_path, script("pass", step))
    assert not result.refusals
    assert any("rd.loss.sum_loss(F.cross_entropy(out, y, reduction='sum') / 50)" in file.text for file in result.files)


RUN = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
x = torch.randn(24, 4, dtype=torch.float64)
y = (x[:, 0] > 0).long()
loader = DataLoader(TensorDataset(x, y), batch_size=6)
model = nn.Linear(4, 2, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def flipped(x):
    return -x if np.random.rand(1) < 0.5 else x


for epoch in range(3):
    for x, y in loader:
        out = model(flipped(x))
        loss = random.choice([F.cross_entropy, F.multi_margin_loss])(out, y)
        if np.random.uniform() > 0.5:
            loss = loss - 0.1 * out[:, 0].mean() / out[:, 1].abs().mean().detach()
        for _ in range(random.randint(0, 2)):
            loss = loss + model.weight.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if torch.rand(1).item() < 0.5:
            print("shown", loss.item())
"""


def test_the_choices_of_all_ranks_are_those_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, RUN, launcher, world_sizes=(2, 3))


TASKS = """\
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
torch.manual_seed(1)
data = TensorDataset(torch.randn(24, 4, dtype=torch.float64), torch.arange(24) % 2)
loader = DataLoader(data, batch_size=6)
model = nn.Linear(4, 2, dtype=torch.float64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tasks = [F.cross_entropy, F.multi_margin_loss]
for epoch in range(2):
    for x, y in loader:
        random.shuffle(tasks)
        if random.random() < 0.5:
            x = -x
        for task in tasks:
            loss = task(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print("shown", loss.item())
"""


def test_choices_before_the_steps_of_several_tasks_are_those_of_one_process(tmp_path: Path, launcher: Launcher) -> None:
    trains_as_one(tmp_path, TASKS, launcher)

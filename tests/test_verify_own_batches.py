"""`retrofit verify` judges batches that no DataLoader gives, folds, mixup and shuffled evaluations."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from further_cases import with_further
from verify_command import ROOT, judge

pytestmark = pytest.mark.usefixtures("forked_python")

SLICES = """\
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()
torch.manual_seed(0)
points = torch.randn(44, 6)
model = torch.nn.Sequential(torch.nn.Linear(7, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(args.epochs):
    order = torch.randperm(len(points))
    for start in range(0, len(points), 8):
        index = order[start : start + 8]
        x = points[index]
        time = torch.randint(0, 10, (len(x), 1)) / 10
        noise = torch.randn_like(x)
        guess = model(torch.cat([x * (1 - time) + noise * time, time], 1))
        loss = torch.nn.functional.mse_loss(guess, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
GENERATOR = """\
import random

import torch


def batches(samples, size):
    random.shuffle(samples)
    for start in range(0, len(samples), size):
        yield torch.stack(samples[start : start + size])


torch.manual_seed(0)
random.seed(0)
train = list(torch.randn(26, 5))
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x in batches(train, 6):
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
FOLDS = """\
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(48, 5), torch.randn(48, 1))
for fold in range(2):
    loader = DataLoader(Subset(data, [i for i in range(48) if i % 2 != fold]), 6, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(2):
        for x, y in loader:
            loss = (model(x) - y).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), f"model{fold}.pt")
"""
MIXUP = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
data = TensorDataset(torch.randn(40, 5), torch.randint(0, 3, (40,)))
loader = DataLoader(data, 8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(2):
    for x, y in loader:
        share = np.random.beta(1.0, 1.0)
        partners = torch.randperm(x.size(0))
        output = model(share * x + (1 - share) * x[partners])
        loss = share * criterion(output, y) + (1 - share) * criterion(output, y[partners])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
MIXED_BY_PLACE = MIXUP.replace("torch.randperm(x.size(0))", "slice(None)").replace("[partners]", ".roll(1, 0)")
MIXED_BACKWARDS = MIXUP.replace("torch.randperm(x.size(0))", "slice(None)").replace("[partners]", ".flip(0)")
SHUFFLED_EVALUATION = """\
import torch
from torch.utils.data import DataLoader, TensorDataset


class Pairs(TensorDataset):
    def draw_others(self):
        self.others = torch.randn(40, 5)

    def __getitem__(self, index):
        return self.others[index], *super().__getitem__(index)


torch.manual_seed(0)
data = Pairs(torch.randn(40, 5), torch.randn(40, 1))
loader = DataLoader(data, 8, shuffle=True)
checked = DataLoader(TensorDataset(torch.randn(37, 5), torch.randn(37, 1)), 4, shuffle=True, drop_last=True)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    data.draw_others()
    model.train()
    for other, x, y in loader:
        optimizer.zero_grad()
        (model(x) - y - 0.1 * model(other)).pow(2).mean().backward()
        optimizer.step()
    model.eval()
    errors = []
    with torch.no_grad():
        for x, y in checked:
            errors.append((model(x) - y).pow(2).mean().sqrt().item())
    print(f"epoch {epoch}: error {sum(errors) / len(errors):.6f}")
torch.save(model.state_dict(), "model.pt")
"""


def converted(folder: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "retrofit", "convert", "train.py", *options]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


ORDER_NOT_RESTORED = """\
import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--resume", default="")
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 5), torch.randn(40, 1)), 8, shuffle=True)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
start = 0
if args.resume:
    state = torch.load(args.resume, map_location="cpu")
    model.load_state_dict(state["model"])
    start = state["epoch"]
for epoch in range(start, 2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")
"""
# The checkpoint to resume from is written every tenth epoch only, and what is there cannot be resumed from.
RARELY_SAVED = ORDER_NOT_RESTORED.replace(
    """    torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")
""",
    """    if epoch % 10 == 9:
        torch.save({"model": model.state_dict(), "epoch": epoch + 1}, "last.pt")
    torch.save({"model": model.state_dict()}, "model.pt")
""",
)
NOISE_OF_NUMPY = """\
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
np.random.seed(0)
loader = DataLoader(TensorDataset(torch.randn(40, 5)), 8, shuffle=True)
generator, critic = torch.nn.Linear(3, 5), torch.nn.Sequential(torch.nn.Linear(5, 1), torch.nn.Sigmoid())
of_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
criterion = torch.nn.BCELoss()
for epoch in range(2):
    for (x,) in loader:
        real, made = torch.ones(x.shape[0], 1), torch.zeros(x.shape[0], 1)
        noise = torch.Tensor(np.random.normal(0, 1, (x.shape[0], 3)))
        of_generator.zero_grad()
        fake = generator(noise)
        criterion(critic(fake), real).backward()
        of_generator.step()
        of_critic.zero_grad()
        loss = (criterion(critic(x), real) + criterion(critic(fake.detach()), made)) / 2
        loss.backward()
        of_critic.step()
    print(f"epoch {epoch} loss {loss.item():.5f}")
"""
ROUNDING_OF_ZERO = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(40, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
# The bias of the first layer has no gradient but for rounding, which Adam makes a step of any size.
model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1, eps=1e-15)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
"""
CUT_EVALUATION = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(40, 5)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), 8, shuffle=True)
held_out = DataLoader(TensorDataset(x[:37], x[:37].sum(1, keepdim=True)), 8, shuffle=True, drop_last=True)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
    losses = []
    for x, y in held_out:  # with gradients
        losses.append((model(x) - y).pow(2).mean().item())
    print(f"epoch {epoch}: held out {len(losses)}")
"""
ROUNDING_THAT_GROWS = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Chaotic(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(0.3))

    def forward(self, x):
        w = self.w  # a step of SGD makes 0.5 + 0.5 * sin(1000 * w) of it, and a little of the samples
        return w**2 / 2 - w / 2 + 0.0005 * torch.cos(1000 * w) + w * x


torch.manual_seed(0)
data = TensorDataset(torch.randn(80, dtype=torch.float64))  # few float32 numbers have one sum, in any order
loader = DataLoader(data, 8, shuffle=True)
model = Chaotic()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
"""
AUGMENTED_BY_A_LIBRARY = """\
import imgaug
import torch
from torch.utils.data import DataLoader, Dataset


class Augmented(Dataset):
    def __init__(self):
        self.x = torch.randn(40, 5)

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.x[index] * (1 + imgaug.draw()), self.x[index].sum().reshape(1)


torch.manual_seed(0)
loader = DataLoader(Augmented(), 8, shuffle=True)
model = torch.nn.Linear(5, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
"""
OF_AN_OBJECT = """\
import random

import torch


class Batches:
    def __init__(self, samples, size):
        self.samples, self.size = samples, size

    def __len__(self):
        return -(-len(self.samples) // self.size)

    def __iter__(self):
        order = random.sample(range(len(self.samples)), len(self.samples))
        for start in range(0, len(order), self.size):
            yield torch.stack([self.samples[place] for place in order[start : start + self.size]])


torch.manual_seed(0)
random.seed(0)
batches = Batches(list(torch.randn(26, 5)), 6)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x in batches:
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
PADDED = """\
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

torch.manual_seed(0)
rows = [torch.randn(3 + 5 * n % 7, 4) for n in range(22)]


def collate(batch):
    return pad_sequence(batch, batch_first=True)


loader = DataLoader(rows, 4, collate_fn=collate, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for x in loader:
        loss = torch.nn.functional.mse_loss(model(x), x.cumsum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
EPISODES = """\
import random

import torch
from torch.utils.data import DataLoader, TensorDataset


class Episodes:
    def __len__(self):
        return 5

    def __iter__(self):
        for _ in range(5):
            chosen = [random.sample(range(8 * label, 8 * label + 8), 4) for label in random.sample(range(6), 3)]
            yield sum(chosen, [])


torch.manual_seed(0)
random.seed(0)
data = torch.randn(48, 5)
loader = DataLoader(TensorDataset(data), batch_sampler=Episodes())
model = torch.nn.Linear(5, 6)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for (x,) in loader:
        z = model(x).view(3, 4, -1)
        centers, query = z[:, :2].mean(1), z[:, 2:].reshape(6, -1)
        loss = torch.nn.functional.cross_entropy(-torch.cdist(query, centers), torch.arange(3).repeat_interleave(2))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
LISTS_OF_INPUTS = """\
import torch


def pairs():
    while True:
        moving, fixed = torch.randn(4, 5), torch.randn(4, 5)
        yield [moving, fixed], [fixed]


torch.manual_seed(0)
generator = pairs()
model = torch.nn.Linear(10, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(8):
    inputs, targets = next(generator)
    loss = torch.nn.functional.mse_loss(model(torch.cat(inputs, 1)), targets[0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LEFT_EVALUATION = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
train = DataLoader(TensorDataset(torch.randn(26, 5)), 6, shuffle=True)
held_out = DataLoader(TensorDataset(torch.randn(10, 5)), 3)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    model.train()
    for (x,) in train:
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    for (x,) in held_out:
        print(torch.nn.functional.mse_loss(model(x), x).item())
        if epoch == 0:
            break
"""
SCRIPTS = {
    "an evaluation that is left": LEFT_EVALUATION,
    "episodes that stay whole": EPISODES,
    "lists of inputs": LISTS_OF_INPUTS,
    "batches of an object": OF_AN_OBJECT,
    "padded as one process does": PADDED,
    "slices": SLICES,
    "generator": GENERATOR,
    "folds": FOLDS,
    "mixup": MIXUP,
    "mixup by place": MIXED_BY_PLACE,
    "mixup backwards": MIXED_BACKWARDS,
    "shuffled evaluation": SHUFFLED_EVALUATION,
    "order not restored": ORDER_NOT_RESTORED,
    "rarely saved": RARELY_SAVED,
    "noise of numpy": NOISE_OF_NUMPY,
    "rounding of a zero gradient": ROUNDING_OF_ZERO,
    "rounding that grows": ROUNDING_THAT_GROWS,
    "shuffled evaluation without its last batch": CUT_EVALUATION,
}
FURTHER = ("batches of an object", "mixup by place", "mixup backwards", "rarely saved", "rounding that grows")
FURTHER += ("rounding of a zero gradient", "shuffled evaluation without its last batch")


def test_random_numbers_of_a_library_are_those_of_the_sample(tmp_path: Path) -> None:
    library = "import random\n\nown = random.Random()\nseed, draw = own.seed, own.random\n"
    (tmp_path / "imgaug.py").write_text(library)  # in its place
    result = converted(tmp_path, AUGMENTED_BY_A_LIBRARY, "--prove")
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("name", with_further(SCRIPTS, *FURTHER))
def test_a_sound_script_of_each_kind_is_proven(tmp_path: Path, name: str) -> None:
    result = converted(tmp_path, SCRIPTS[name], "--prove")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "samples, losses, gradients and weights compared" in result.stdout


def test_ranks_that_cut_slices_of_different_orders_are_found(tmp_path: Path) -> None:
    assert converted(tmp_path, SLICES, "--write").returncode == 0
    text = (tmp_path / "train.py").read_text()
    together = "rd.data.draw_together(torch.randperm, len(points))"
    assert together in text
    (tmp_path / "train.py").write_text(text.replace(together, "torch.randperm(len(points))"))
    status, report = judge(tmp_path, [], [])
    assert status == 1
    assert "RF103" in [verdict["cause"] for verdict in report["verdicts"] if verdict["check"] == "shards"]

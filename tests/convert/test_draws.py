"""Trainings without a DataLoader: where their batches are split, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

START = """\
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
random.seed(0)
np.random.seed(0)
X, Y = torch.rand(100, 4), torch.rand(100)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch_size = 8
rng = np.random.default_rng(0)
"""
STEP = """\
    loss = F.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SIZE = "rd.data.batch_of_ranks(batch_size)"


def lines_of(folder: Path, body: str) -> list[str]:
    return converted(folder, START + body)


def loop(*lines: str, over: str = "step in range(10)", before: str = "") -> str:
    inside = "".join(f"    {line}\n" for line in lines)
    return f"{before}for {over}:\n{inside}{STEP}"


def nested(*lines: str, over: str, outer: str = "", step: str = STEP) -> str:
    """Return a loop over epochs, `outer` in it, and a loop over batches in that."""
    inside = "".join(f"    {line}\n" for line in lines) + step
    body = "".join(f"    {line}\n" for line in inside.splitlines())
    return f"for epoch in range(3):\n    {outer or 'pass'}\n    for {over}:\n{body}"


@pytest.mark.parametrize(
    "drawn",
    [
        "torch.randint(100, (SIZE,))",
        "torch.randint(0, 100, size=(SIZE,))",
        "torch.randint(0, len(X), [SIZE])",
        "np.random.randint(0, 100, SIZE)",
        "np.random.choice(100, SIZE, replace=False)",
        "np.random.choice(len(X), size=SIZE)",
        "np.random.permutation(100)[:SIZE]",
        "torch.randperm(len(X))[:SIZE]",
        "rng.integers(0, 100, size=SIZE)",
        "rng.choice(100, SIZE)",
        "random.sample(range(100), SIZE)",
        "random.choices(range(100), k=SIZE)",
        "[random.randrange(100) for _ in range(SIZE)]",
        "torch.multinomial(torch.ones(100), SIZE)",
    ],
)
def test_indices_are_drawn_for_all_ranks_and_split(tmp_path: Path, drawn: str) -> None:
    lines = lines_of(tmp_path, loop(f"i = {drawn.replace('SIZE', 'batch_size')}", "x, y = X[i], Y[i]"))
    assert f"i = rd.data.own_draw({drawn.replace('SIZE', SIZE)})" in lines


@pytest.mark.parametrize(
    "drawn",
    [
        "torch.rand(SIZE, 4)",
        "torch.randn((SIZE, 4))",
        "torch.empty(SIZE, 4).uniform_(-1, 1)",
        "torch.bernoulli(torch.full((SIZE, 4), 0.5))",
        "torch.as_tensor(np.random.uniform(0, 1, (SIZE, 4)))",
        "torch.distributions.Normal(torch.zeros(4), torch.ones(4)).sample((SIZE,))",
    ],
)
def test_samples_that_are_drawn_are_split_by_rows(tmp_path: Path, drawn: str) -> None:
    lines = lines_of(tmp_path, loop(f"x = {drawn.replace('SIZE', 'batch_size')}", "y = x.sum(1)"))
    (line,) = [line for line in lines if line.startswith("x = ")]
    assert "rd.data.own_draw(" in line and line.count(SIZE) == 1


def test_noise_of_the_shape_of_a_batch_stays(tmp_path: Path) -> None:
    body = loop(
        "i = torch.randint(100, (batch_size,))",
        "x = X[i]",
        "x = x + torch.randn_like(x) * torch.rand(x.shape[0], 1)",
        "y = Y[i]",
    )
    lines = lines_of(tmp_path, body)
    assert sum("own_draw" in line for line in lines) == 1


def test_a_size_given_to_a_function_is_changed_where_it_draws(tmp_path: Path) -> None:
    before = "def get_batch(n):\n    i = torch.randint(100, (n,))\n    return X[i], Y[i]\n\n\n"
    lines = lines_of(tmp_path, before + loop("x, y = get_batch(batch_size)"))
    assert "i = rd.data.own_draw(torch.randint(100, (rd.data.batch_of_ranks(n),)))" in lines
    assert "x, y = get_batch(batch_size)" in lines


@pytest.mark.parametrize(
    ("over", "cut"),
    [
        ("i in range(0, 100, SIZE)", "i:i + SIZE"),
        ("i in range(0, len(X), SIZE)", "i:min(i + SIZE, len(X))"),
        ("b in range(100 // SIZE)", "b * SIZE:(b + 1) * SIZE"),
        ("b in range(len(X) // SIZE)", "b * SIZE:b * SIZE + SIZE"),
    ],
)
@pytest.mark.parametrize("drawn", ["torch.randperm(100)", "np.random.permutation(100)"])
def test_slices_of_an_order_that_all_ranks_draw_together(tmp_path: Path, over: str, cut: str, drawn: str) -> None:
    body = nested(
        f"k = order[{cut.replace('SIZE', 'batch_size')}]",
        "x, y = X[k], Y[k]",
        over=over.replace("SIZE", "batch_size"),
        outer=f"order = {drawn}",
    )
    lines = lines_of(tmp_path, body)
    assert f"order = rd.data.draw_together({drawn.replace('(', ', ')}" in lines
    assert f"for {over.replace('SIZE', SIZE)}:" in lines
    assert f"k = rd.data.own_part(order[{cut.replace('SIZE', SIZE)}])" in lines


@pytest.mark.parametrize(
    ("count", "over"),
    [
        ("n = 100 // SIZE if len(Y) else min(100 // SIZE, 5)", "range(n)"),
        ("n = None or 100 // SIZE", "trange(n)"),
        ("n, rest = divmod(100, SIZE)", "tqdm(range(n))"),
        ("n = steps(100, SIZE)", "range(n)"),
    ],
)
def test_a_count_of_batches_is_that_of_all_ranks(tmp_path: Path, count: str, over: str) -> None:
    start = "from tqdm import tqdm, trange\n\n\ndef steps(n, size):\n    return int(np.ceil(n / size))\n\n\n"
    cuts = (f"{name} = {source}[b * batch_size : (b + 1) * batch_size]" for name, source in (("x", "X"), ("y", "Y")))
    body = start + count.replace("SIZE", "batch_size") + "\n" + nested(*cuts, over=f"b in {over}")
    assert count.replace("SIZE", SIZE) in lines_of(tmp_path, body)


COUNTED = """\
class Batches:
    def __init__(self, size):
        self.size = size
        self.number = 100 // self.size

    def __len__(self):
        return len(X) // self.size

    def get(self, b):
        return X[b * self.size : (b + 1) * self.size], Y[b * self.size : (b + 1) * self.size]


batches = Batches(batch_size)
"""


@pytest.mark.parametrize(
    ("over", "changed"),
    [
        ("b in range(batches.number)", "self.number = 100 // rd.data.batch_of_ranks(self.size)"),
        ("b in range(len(batches))", "return len(X) // rd.data.batch_of_ranks(self.size)"),
    ],
)
def test_a_count_of_batches_that_an_object_gives(tmp_path: Path, over: str, changed: str) -> None:
    lines = lines_of(tmp_path, COUNTED + nested("x, y = batches.get(b)", over=over))
    assert changed in lines
    assert "batches = Batches(batch_size)" in lines, "the number of ranks counts once"


def test_the_end_of_a_while_loop_follows_the_batch(tmp_path: Path) -> None:
    body = (
        "at = 0\n"
        "while at + batch_size <= 100:\n"
        "    x, y = X[at : at + batch_size], Y[at : at + batch_size]\n"
        f"{STEP}    at += batch_size\n"
    )
    lines = lines_of(tmp_path, body)
    assert f"while at + {SIZE} <= 100:" in lines
    assert f"at += {SIZE}" in lines


def test_slices_of_the_data(tmp_path: Path) -> None:
    body = nested("x = X[i:i+batch_size]", "y = Y[i:i+batch_size]", over="i in range(0, 100, batch_size)")
    lines = lines_of(tmp_path, body)
    assert f"x = rd.data.own_part(X[i:i+{SIZE}])" in lines
    assert f"y = rd.data.own_part(Y[i:i+{SIZE}])" in lines


@pytest.mark.parametrize("test", ["end > 100", "100 < end", "end >= 100"])
def test_a_slice_that_is_cut_off_at_the_end_of_the_data(tmp_path: Path, test: str) -> None:
    cut = ["start = i * batch_size", "end = (i + 1) * batch_size", f"if {test}:", "    end = 100"]
    text = nested(*cut, "x, y = X[start:end], Y[start:end]", over="i in range(100 // batch_size + 1)")
    lines = lines_of(tmp_path, text)
    assert f"end = (i + 1) * {SIZE}" in lines and "end = 100" in lines
    assert "x, y = rd.data.own_part(X[start:end]), rd.data.own_part(Y[start:end])" in lines


def test_a_pointer_that_goes_through_shuffled_data(tmp_path: Path) -> None:
    body = loop(
        "x, y = X[k[at:at + batch_size]], Y[k[at:at + batch_size]]",
        "at += batch_size",
        "if at >= 100:",
        "    random.shuffle(k)",
        "    at = 0",
        before="k, at = list(range(100)), 0\n",
    )
    lines = lines_of(tmp_path, body)
    cut = f"rd.data.own_part(k[at:at + {SIZE}])"
    assert f"x, y = X[{cut}], Y[{cut}]" in lines
    assert f"at += {SIZE}" in lines
    assert "rd.data.draw_together(random.shuffle, k)" in lines


@pytest.mark.parametrize(
    "parts", ["torch.randperm(100).split(batch_size)", "torch.split(torch.randperm(100), batch_size)"]
)
def test_parts_of_an_order(tmp_path: Path, parts: str) -> None:
    lines = lines_of(tmp_path, nested("x, y = X[k], Y[k]", over=f"k in {parts}"))
    common = parts.replace("batch_size", SIZE).replace(
        "torch.randperm(100)", "rd.data.draw_together(torch.randperm, 100)"
    )
    assert f"for k in map(rd.data.own_part, {common}):" in lines


@pytest.mark.parametrize("use", ["len(parts)", "parts[0]"])
def test_parts_in_a_variable_are_a_list(tmp_path: Path, use: str) -> None:
    outer = f"parts = torch.randperm(100).split(batch_size); print({use})"
    lines = lines_of(tmp_path, nested("x, y = X[k], Y[k]", over="k in parts", outer=outer))
    parts = f"rd.data.draw_together(torch.randperm, 100).split({SIZE})"
    assert f"parts = list(map(rd.data.own_part, {parts})); print({use})" in lines


def test_a_number_of_parts_is_not_taken_for_their_size(tmp_path: Path) -> None:
    outer = "parts = np.split(np.random.permutation(100), 10)"
    lines = lines_of(tmp_path, nested("x, y = X[k], Y[k]", over="k in parts", outer=outer))
    assert "parts = np.split(rd.data.draw_together(np.random.permutation, 100), 10)" in lines
    assert "parts = rd.distribute_loader(parts)" in lines  # whole parts in turn


def test_what_a_batch_makes_for_itself_is_set_by_its_own_indices(tmp_path: Path) -> None:
    body = loop(
        "i = torch.randint(100, (batch_size,))",
        "x, y = X[i], Y[i]",
        "mask = torch.zeros(x.shape)",
        "mask[x > 0.5] = 1",
        "x = x * mask",
    )
    assert "mask[x > 0.5] = 1" in lines_of(tmp_path, body)


def test_a_batch_that_is_computed_in_pieces_is_cut_once(tmp_path: Path) -> None:
    before = "def in_pieces(x):\n    return torch.cat([model(x[j:j+4]) for j in range(0, len(x), 4)])\n\n\n"
    body = loop("k = torch.randint(100, (batch_size,))", "x, y = X[k], Y[k]")
    lines = lines_of(tmp_path, before + body.replace("model(x)", "in_pieces(x)"))
    assert "return torch.cat([model(x[j:j+4]) for j in range(0, len(x), 4)])" in lines


REFUSED = {
    "full batch": (loop("x, y = X, Y"), "every step computes its loss from all of the data"),
    "buffer that it fills": (
        loop("old.append(step)", "i = random.sample(old, batch_size)", "x, y = X[i], Y[i]", before="old = [0] * 8\n"),
        "which changes while it trains",
    ),
    "kept by sample": (
        loop("i = torch.randint(100, (batch_size,))", "x, y = X[i], Y[i]", "bank[i] = x", before="bank = X.clone()\n"),
        "keeps what each process has for its own samples",
    ),
    "chosen by the model": (
        loop(
            "w = model(X).detach().abs().squeeze(1)", "i = torch.multinomial(w, batch_size)", "x, y = X[i], Y[i]",
        ),
        "what the model has computed",
    ),
    "one sequence": (
        loop("x = X[i:i+bptt]", "y = X[i+1:i+1+bptt, 0]", over="i in range(0, 90, bptt)", before="bptt = 5\n"),
        "cuts samples, or one sequence",
    ),
    "windows": (
        loop("x, y = X[i:i+batch_size], Y[i:i+batch_size]", over="i in range(0, 90)"),
        "the loop does not advance by batch_size",
    ),
    "time first": (
        loop("x = torch.randn(length, 8, 4)[-1]", "y = x.sum(1)", before="length = 5\n"),
        "which dimension of torch.randn(length, 8, 4)",
    ),
    "shape that is not written": (
        loop("x = torch.randn(shape)", "y = x.sum(1)", before="shape = (8, 4)\n"),
        "is not written down",
    ),
    "data of each epoch": (
        nested(
            "i = torch.randint(100, (batch_size,))", "x = points[i]", "y = x.sum(1)", over="step in range(4)",
            outer="points = torch.rand(100, 4)",
        ),
        "points is drawn again while it trains",
    ),
    "cut again": (
        nested(
            "x, y = points[j:j+4], points[j:j+4].sum(1)", over="j in range(0, 8, 4)",
            outer="points = torch.rand(batch_size, 4)",
        ),
        "cuts what was drawn into smaller batches",
    ),
    "generator without a seed": (
        nested(
            "k = order[i:i+batch_size]", "x, y = X[k], Y[k]", over="i in range(0, 100, batch_size)",
            outer="order = np.random.default_rng().permutation(100)",
        ),
        "a generator without a seed",
    ),
    "a place, not a batch": (
        loop("at = torch.randint(4, (2,))", "x, y = X[at[0]:], Y[at[0]:]"),
        "every step computes its loss from all of the data",
    ),
    "noise for all samples": (
        loop("x = X + torch.randn(width)", "y = Y", before="width = 4\n"),
        "which dimension of torch.randn(width)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_split_for_certain_is_refused(tmp_path: Path, case: str) -> None:
    body, reason = REFUSED[case]
    reasons = [finding.refusal for finding in conversion(tmp_path, START + body).refusals]
    assert any(reason in text for text in reasons), reasons


def test_an_evaluation_that_draws_its_batches_reduces_the_loss_of_the_model(tmp_path: Path) -> None:
    model = (
        "class Scored(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.inner = nn.Linear(4, 1)\n\n    def forward(self, x, y):\n        out = self.inner(x)\n"
        "        return out, F.mse_loss(out.squeeze(1), y)\n\n\nmodel = Scored()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n\n\n"
        "def get_batch():\n    i = torch.randint(100, (batch_size,))\n    return X[i], Y[i]\n\n\n"
        "@torch.no_grad()\ndef estimate():\n    total = 0.0\n    for _ in range(4):\n"
        "        _, loss = model(*get_batch())\n        total += loss.item()\n    return total / 4\n\n\n"
    )
    training = (
        "for step in range(10):\n    if step % 5 == 0:\n        print(estimate())\n    x, y = get_batch()\n"
        "    _, loss = model(x, y)\n    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n"
    )
    assert "total += rd.reduce_loss(loss).item()" in lines_of(tmp_path, model + training)


GET_BATCH = "def get_batch():\n    i = torch.randint(100, (batch_size,))\n    return X[i], Y[i]\n\n\n"


def test_a_loss_that_compares_the_samples_of_a_drawn_batch_is_refused(tmp_path: Path) -> None:
    step = (
        "for step in range(10):\n    x, y = get_batch()\n    a, b = model(x), model(x + 0.1)\n"
        "    loss = F.cross_entropy(a @ b.t(), torch.arange(len(x)))\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    (refused,) = conversion(tmp_path, START + GET_BATCH + step).refusals
    assert refused.code == "RF303"


def test_a_mean_over_chosen_samples_of_a_drawn_batch_is_listed(tmp_path: Path) -> None:
    step = (
        "for step in range(10):\n    x, y = get_batch()\n    errors = (model(x).squeeze(1) - y).abs()\n"
        "    loss = errors[y > 0.5].mean()\n    optimizer.zero_grad()\n"
        "    loss.backward()\n    optimizer.step()\n"
    )
    plan = conversion(tmp_path, START + GET_BATCH + step)
    text = "".join(file.text for file in plan.files)
    assert "batch_mean" in text or [finding for finding in plan.findings if finding.code == "RF302"]


ATTACK = """\
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(32, 4), torch.randn(32, 1)), batch_size=8, shuffle=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def attacked(x, y):
    delta = torch.zeros_like(x, requires_grad=True)
    steps = torch.optim.SGD([delta], lr=0.01)
    for _ in range(3):
        steps.zero_grad()
        loss = -nn.functional.mse_loss(model(x + delta), y)
        loss.backward()
        norms = delta.grad.norm(dim=1)
        delta.grad[norms == 0] = torch.randn_like(delta.grad[norms == 0])
        steps.step()
    return (x + delta).detach()


for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(attacked(x, y)), y).backward()
    optimizer.step()
"""


def test_steps_on_the_batch_of_a_loader_draw_nothing(tmp_path: Path) -> None:
    lines = converted(tmp_path, ATTACK)
    assert "loader = rd.distribute_loader(loader)" in lines


ROLLOUT = """\
for iteration in range(3):
    for t in range(16):
        with torch.no_grad():
            action = model(state).sigmoid().bernoulli()
        STORE
        state, reward = env.step(action)
    COLLECT
    order = np.arange(16)
    np.random.shuffle(order)
    for start in range(0, 16, batch_size):
        chosen = order[start : start + batch_size]
        loss = F.mse_loss(model(CHOICE), torch.zeros(batch_size, 1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
ENVIRONMENT = """\
class World:
    def __init__(self):
        self.position = torch.zeros(4)

    def step(self, action):
        self.position = self.position + action
        return self.position, -self.position.abs().sum()


"""


@pytest.mark.parametrize(
    ("before", "store", "collect", "choice"),
    [
        ("storage = torch.zeros(16, 4)", "storage[t] = state", "data = storage.reshape(-1, 4)", "data[chosen]"),
        ("", "played.append(state)", "data = torch.stack(played)", "data[chosen]"),
        ("storage = {'states': torch.zeros(16, 4)}", "storage['states'][t] = state", "", "storage['states'][chosen]"),
        (
            "storage = {'states': torch.zeros(16, 4)}",
            "storage['states'][t] = state",
            "data = storage['states'].reshape(-1, 4)",
            "data[chosen]",
        ),
        (
            "storage = dict(states=torch.zeros(16, 4))",
            "storage['states'][t, :] = state",
            "",
            "storage['states'][chosen]",
        ),
        (
            "storage = {'states': []}",
            "storage['states'].append(state)",
            "data = torch.stack(storage['states'])",
            "data[chosen]",
        ),
    ],
)
@pytest.mark.parametrize("environment", ["library", "own"])
def test_what_a_policy_plays_in_the_loop_is_refused(
    tmp_path: Path, before: str, store: str, collect: str, choice: str, environment: str
) -> None:
    made = {"library": "import gym\nenv = gym.make('World')\n", "own": ENVIRONMENT + "env = World()\n"}[environment]
    body = ROLLOUT.replace("STORE", store).replace("COLLECT", collect or "pass").replace("CHOICE", choice)
    if "played" in body:
        body = body.replace("    for t in", "    played = []\n    for t in", 1)
    refused = conversion(tmp_path, f"{START}{made}state = torch.zeros(4)\n{before}\n{body}")
    assert any("reinforcement learning with an environment" in finding.refusal for finding in refused.refusals)


def test_labels_that_are_computed_in_each_epoch_are_converted(tmp_path: Path) -> None:
    outer = "labels = model(X).detach().squeeze(1).round()"
    lines = ("chosen = slice(start, start + batch_size)", "x, y = X[start : start + batch_size], 0")
    body = nested(*lines, over="start in range(0, 100, batch_size)", outer=outer)
    assert any("rd.data.own_part" in line for line in lines_of(tmp_path, body))


DRAWN_ELSEWHERE = """\
class Sampler:
    def __init__(self):
        self.queue = multiprocessing.Queue()

    def next_batch(self):
        return self.queue.get()


def window(source, i):
    return source[:, i : i + 5]


def in_chunks(rows, batch_size):
    found = []
    for number in range(len(rows) // batch_size):
        found.append(rows[number * batch_size : (number + 1) * batch_size] * 2)
    return torch.cat(found)


def num_samples(step):
    return 10 + step


def crops(n):
    rows = torch.zeros(n, 4)
    for row in range(n):
        start = random.randint(0, 90)
        rows[row] = X.view(-1)[start : start + 4]
    return rows, Y[:n]


sampler = Sampler()
"""


@pytest.mark.parametrize(
    ("over", "line", "named"),
    [
        ("step in range(10)", "x, y = sampler.next_batch()", "next_batch()"),
        ("step in range(10)", "x, y = sampler.queue.get()", "sampler.queue.get()"),
        ("i in range(0, 90, 5)", "x, y = window(X, i), Y", "source[:, i:i + 5]"),
        ("step in range(10)", "x, y = crops(len(X) // 12)", "random.randint(0, 90)"),
        ("step in range(10)", "x, y = torch.load(files[step])", "files[step]"),
        ("step in range(10)", "x, y = in_chunks(X[sampler.next_batch()], 8), Y[: num_samples(0)]", "next_batch()"),
    ],
)
def test_a_refusal_names_what_gives_a_batch(tmp_path: Path, over: str, line: str, named: str) -> None:
    refused = conversion(tmp_path, "import multiprocessing\n" + START + DRAWN_ELSEWHERE + loop(line, over=over))
    (refusal,) = {finding.refusal for finding in refused.refusals}
    assert "all of the data" not in refusal and named in refusal


def test_a_refusal_names_the_batch_before_what_is_kept_of_it(tmp_path: Path) -> None:
    kept = "rows = torch.randperm(len(X))[:8]; scores[rows] = model(X[rows]).detach()"
    lines = "scores = torch.zeros(len(X), 1)\n" + DRAWN_ELSEWHERE + loop(f"x, y = sampler.next_batch(); {kept}")
    refused = conversion(tmp_path, START + lines)
    assert "next_batch()" in refused.refusals[0].refusal


def test_a_refusal_says_where_all_of_the_data_is_used(tmp_path: Path) -> None:
    refused = conversion(tmp_path, START + loop("x, y = X, Y"))
    (refusal,) = {finding.refusal for finding in refused.refusals}
    assert "every step computes its loss from all of the data" in refusal


SIZE_OF_A_CALL = """\
import numpy as np
import torch
from torch import nn

data = torch.randn(100, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)



def get_batch(batch_size=256):
    indices = np.random.choice(100, size=batch_size)
    {rows}


def step(size=64):
    x = get_batch(size)
    loss = model(x).view({shape}).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(9):
    step(16)
"""


@pytest.mark.parametrize(
    ("rows", "shape", "expected"),
    [
        ("return data[indices]", "size, 1", "loss = model(x).view(rd.data.own_batch_size(size), 1).pow(2).mean()"),
        (
            "return torch.stack([data[indices[row]] for row in range(batch_size)])",
            "-1, 1",
            "return torch.stack([data[indices[row]] for row in range(rd.data.own_batch_size(batch_size))])",
        ),
    ],
)
def test_a_size_that_callers_give_is_that_of_the_batch_in_hand(
    tmp_path: Path, rows: str, shape: str, expected: str
) -> None:
    assert expected in converted(tmp_path, SIZE_OF_A_CALL.format(rows=rows, shape=shape))

"""Parameters that not every loss depends on: the same training as in one process, whoever uses them, and when."""

from __future__ import annotations

import os
import warnings
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import retrofit.distributed as rd
from retrofit.distributed import get_rank
from retrofit.distributed.ddp import wrapper

NUM_STEPS = 14
WORLD_SIZE = 2


class Parts(nn.Module):
    """A model of which a forward runs some parts; labels may be None, as in classifier-free guidance."""

    def __init__(self, sparse=False, recompute=False, norm=False):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.stem = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4) if norm else nn.Identity()
        self.labels = nn.Embedding(5, 4, sparse=sparse)
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
        self.fc = nn.Linear(4, 7)  # a backbone's head that no forward runs
        self.recompute = recompute

    def forward(self, x, parts):
        y = self.norm(self.stem(x)) * self.scale
        if "labels" in parts:
            y = y + self.labels(torch.arange(len(x)) % 6 % 5)
        for name in ("left", "right"):
            if name in parts:
                layer = getattr(self, name)
                y = y + (checkpoint(layer, y, use_reentrant=True) if self.recompute else layer(y).tanh())
        if "fc" in parts:
            y = y + self.fc(y)[:, :4]
        return {"out": y, "unused": self.right(y)} if "right" not in parts and "output" in parts else {"out": y}


def never(step, rank):
    return {"labels", "left", "right"}


def one_step_in_ten(step, rank):
    return {"left", "right"} | ({"labels"} if (step + 3 * rank) % 10 != 9 else set())


def turns(step, rank):
    return {"labels", ("left", "right")[step % 2], "fc"}


def turns_of_ranks(step, rank):
    return {"labels", ("left", "right")[(step + rank) % 2]}


def one_rank_once(step, rank):
    return {"labels", "left", "right", "fc"} if (step, rank) == (9, 1) else {"labels", "left", "right"}


def later_on_one_rank(step, rank):
    return {"labels", "left", "right", "fc"} - ({"left"} if step >= 8 and rank == 0 else set())


def later_on_all(step, rank):
    return {"labels", "left", "right", "fc"} - ({"left", "fc"} if 7 <= step < 10 else set())


def all_but_an_output(step, rank):
    return {"labels", "left", "output", "fc"}


def everything(step, rank):
    return {"labels", "left", "right", "fc"}


PATTERNS = [
    never, one_step_in_ten, turns, turns_of_ranks, one_rank_once, later_on_one_rank, later_on_all, all_but_an_output,
    everything,
]  # fmt: skip
KINDS = {"plain": {}, "sparse": {"sparse": True}, "recomputed": {"recompute": True}, "batch norm": {"norm": True}}


def optimizer_of(model, options):
    if options.get("sparse") or options.get("norm"):  # AdamW moves a bias in front of a norm by noise
        return torch.optim.SGD(
            model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.0 if options.get("sparse") else 0.1
        )
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.5)  # which moves what has a gradient of zeros


def half(step, rank):
    x = torch.randn(2 * WORLD_SIZE * 3, 3, generator=torch.Generator().manual_seed(step))
    return x[rank * 6 : rank * 6 + 6]


def new_model(options):
    torch.manual_seed(0)
    return Parts(**options)


def in_one_process(pattern, options):
    """Train with the mean of the losses of what the ranks have."""
    model = new_model(options)
    optimizer = optimizer_of(model, options)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        parts = [pattern(step, rank) for rank in range(WORLD_SIZE)]
        if options.get("norm"):  # one batch
            assert parts[0] == parts[1]
            outputs = [model(torch.cat([half(step, rank) for rank in range(WORLD_SIZE)]), parts[0])["out"]]
        else:
            outputs = [model(half(step, rank), parts[rank])["out"] for rank in range(WORLD_SIZE)]
        sum(out.square().mean() for out in outputs).div(len(outputs)).backward()
        optimizer.step()
    return state_of(model)


def on_ranks(patterns, options, num_passes):
    os.environ["RETROFIT_CONSISTENCY"] = "always"
    try:
        return [on_this_rank(pattern, options, num_passes) for pattern in patterns]
    finally:
        del os.environ["RETROFIT_CONSISTENCY"]


def wrapped(model, num_passes):
    """Return the model distributed, with another number of backward passes in which the ranks look what is used."""
    with mock.patch.object(wrapper, "FIRST_PASSES", num_passes):
        return rd.distribute_model(model)


def on_this_rank(pattern, options, num_passes):
    model = wrapped(new_model(options), num_passes)
    optimizer = optimizer_of(model, options)
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        model(half(step, get_rank()), pattern(step, get_rank()))["out"].square().mean().backward()
        optimizer.step()
    return state_of(model), model.__dict__["_gradient_sync"].is_looking


def state_of(model):
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def assert_same(patterns, options, found):
    for number, pattern in enumerate(patterns):
        expected = in_one_process(pattern, options)
        (first, _), (second, _) = (of_rank[number] for of_rank in found)
        for name, value in expected.items():
            assert (first[name] - value).abs().max() <= 2e-5, (pattern.__name__, name, first[name], value)
            assert torch.equal(first[name], second[name]), (pattern.__name__, name)


@pytest.mark.parametrize("num_passes", [20, 2], ids=["while looking", "handed to DDP"])
@pytest.mark.parametrize("kind", ["plain", "sparse", "recomputed"])
def test_unused_parameters_are_as_in_one_process(ranks, kind, num_passes):
    patterns = [
        pattern for pattern in PATTERNS if kind == "plain" or pattern in (never, one_step_in_ten, turns_of_ranks)
    ]
    found = ranks(WORLD_SIZE).run(on_ranks, patterns, KINDS[kind], num_passes)
    assert_same(patterns, KINDS[kind], found)
    if kind == "plain" and num_passes == 2:
        looking = {pattern.__name__: found[0][number][1] for number, pattern in enumerate(patterns)}
        assert looking == {
            "never": False, "everything": False, "all_but_an_output": False, "one_step_in_ten": True, "turns": True,
            "turns_of_ranks": True, "one_rank_once": True, "later_on_one_rank": True, "later_on_all": True,
        }  # fmt: skip


def test_with_batch_norm_over_all_ranks(ranks):
    patterns = [never, turns, later_on_all]
    for num_passes in (20, 2):
        found = ranks(WORLD_SIZE).run(on_ranks, patterns, KINDS["batch norm"], num_passes)
        assert_same(patterns, KINDS["batch norm"], found)


# ---- other ways to train


def reductions(make):
    """Return how many all-reduces each of the last steps makes, when everything is used."""
    counts = []
    model = wrapped(make(), 2)
    calls = []
    all_reduce = dist.all_reduce
    dist.all_reduce = lambda *args, **kwargs: (calls.append(1), all_reduce(*args, **kwargs))[1]
    os.environ["RETROFIT_CONSISTENCY"] = "off"
    try:
        for step in range(5):
            before = len(calls)
            model(half(step, get_rank()), everything(step, 0))["out"].square().mean().backward()
            counts.append(len(calls) - before)
    finally:
        dist.all_reduce = all_reduce
        del os.environ["RETROFIT_CONSISTENCY"]
    return counts


def without_comparison():
    os.environ["RETROFIT_CONSISTENCY"] = "off"
    return reductions(Parts)


def test_only_the_reduction_of_ddp_remains_if_everything_is_used(ranks):
    for counts in ranks(WORLD_SIZE).run(without_comparison):
        assert counts == [2, 2, 0, 0, 0]


def alternating_gan():
    """One module with both parts, and what is trainable of it changes with every step."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"g": nn.Linear(3, 3), "d": nn.Linear(3, 1)})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, what):
            fake = self.net["g"](x)
            return self.net["d"](fake if what == "g" else torch.cat([x, fake.detach()])).mean()

    model = rd.distribute_model(Both()) if rd.process_group.is_distributed() else Both()
    optimizers = {part: torch.optim.Adam(net[part].parameters(), lr=0.01) for part in "gd"}
    for step in range(10):
        for part in "dg":
            net["d"].requires_grad_(part == "d")
            optimizers[part].zero_grad()
            x = (
                half(step, get_rank())
                if rd.process_group.is_distributed()
                else torch.cat([half(step, 0), half(step, 1)])
            )
            model(x, part).backward()
            optimizers[part].step()
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def test_parts_that_are_trained_and_frozen_alternately(ranks):
    expected = alternating_gan()
    first, second = ranks(WORLD_SIZE).run(alternating_gan)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=1e-5)
        assert torch.equal(first[name], second[name])


def accumulated():
    """A part may be used in one micro batch only, and by one rank only."""
    model = rd.distribute_model(new_model({})) if rd.process_group.is_distributed() else new_model({})
    optimizer = optimizer_of(model, {})
    for step in range(6):
        optimizer.zero_grad()
        for micro in range(2):
            places = [get_rank()] if rd.process_group.is_distributed() else [0, 1]
            with rd.strategies.gradient_sync(model, micro == 1):
                for rank in places:
                    parts = {"labels", "left"} if micro or (rank and step % 2) else {"right"}
                    out = model(half(2 * step + micro, rank), parts)["out"]
                    (out.square().mean() / 2 / len(places)).backward()
        optimizer.step()
    return state_of(model)


def hidden_output():
    """A loss that the model keeps, which no output leads to, is found by the gradients themselves."""

    class Keeps(Parts):
        def forward(self, x, parts):
            self.kept = [super().forward(x, parts)["out"].square().mean()]
            return None

    torch.manual_seed(0)
    model = Keeps()
    wrapped = rd.distribute_model(model) if rd.process_group.is_distributed() else model
    optimizer = optimizer_of(wrapped, {})
    for step in range(4):
        optimizer.zero_grad()
        for rank in [get_rank()] if rd.process_group.is_distributed() else [0, 1]:
            wrapped(half(step, rank), never(step, 0))
            (model.kept[0] / (1 if rd.process_group.is_distributed() else 2)).backward()
        optimizer.step()
    return state_of(wrapped)


@pytest.mark.parametrize("train", [accumulated, hidden_output])
def test_other_ways_to_train(ranks, train):
    expected = train()
    first, second = ranks(WORLD_SIZE).run(train)
    for name, value in expected.items():
        torch.testing.assert_close(first[name], value, rtol=0, atol=1e-5, msg=name)
        assert torch.equal(first[name], second[name])


def with_a_hook_of_the_script():
    model = rd.distribute_model(nn.Linear(3, 1))
    calls = []

    def hook(state, bucket):
        calls.append(1)
        return dist.all_reduce(bucket.buffer().div_(2), async_op=True).get_future().then(lambda done: done.value()[0])

    hook.__annotations__ = {}
    model.register_comm_hook(None, hook)
    for step in range(3):
        model(half(step, get_rank())).mean().backward()
    return len(calls), model.weight.grad.clone()


def test_a_communication_hook_of_the_script_is_used_from_the_first_step(ranks):
    (number, first), (_, second) = ranks(WORLD_SIZE).run(with_a_hook_of_the_script)
    assert number == 3 and torch.equal(first, second)


def asked_for():
    os.environ["RETROFIT_FIND_UNUSED_PARAMETERS"] = "1"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return on_this_rank(one_step_in_ten, {}, 20)[0]
    finally:
        del os.environ["RETROFIT_FIND_UNUSED_PARAMETERS"]


def test_the_detection_of_ddp_remains_an_option(ranks):
    expected = in_one_process(one_step_in_ten, {})
    for found in ranks(WORLD_SIZE).run(asked_for):
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=0, atol=2e-5, msg=name)

"""Models that RETROFIT_STRATEGY=fsdp shards: the training of DDP, and errors with their line where that cannot be."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from verify.projects.launch import Launcher

HEAD = """\
import copy
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn

import retrofit.distributed as rd


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.narrow(torch.tanh(self.wide(x)))


class Net(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.first, self.last, self.unused = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(5, 5)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.scale = nn.Parameter(torch.tensor(0.5))
        if tied:
            self.again = nn.Linear(4, 8, bias=False)
            self.again.weight = self.first.weight

    def encode(self, x, left_out=None):
        x = self.first(x)
        for number, block in enumerate(self.blocks):
            x = x if number == left_out else block(x)
        return x

    def decode(self, z):
        return self.last(z) * self.scale

    def forward(self, x, left_out=None):
        return self.decode(self.encode(x, left_out))


def data(step, size=6):
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(10 * step + rd.get_rank()))


def new_model(**options):
    torch.manual_seed(0)
    return Net(**options)


rd.setup_distributed()
"""
SOUND = """

def plain(model, step):
    return model(data(step)).square().mean()


def two_calls(model, step):
    return plain(model, step) + model(data(step + 50)).abs().mean()


def chained(model, step):
    return model(model(data(step))).square().mean()


def methods(model, step):
    return model.decode(model.encode(data(step))).square().mean()


def another_block_left_out_in_each_step(model, step):
    return model(data(step), left_out=step % 3).square().mean()


def frozen_and_thawed(model, step):
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(step % 2 == 0)
    return plain(model, step)


def accumulated(model, step):
    plain(model, step).backward()
    with model.no_sync():
        plain(model, step + 20).backward()
    return plain(model, step + 40)


def attacked(model, step):
    x = data(step).requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    return model(x.detach() + 0.1 * gradient.sign()).square().mean()


def weights_clamped(model, step):
    for parameter in model.parameters():
        parameter.data.clamp_(-0.2, 0.2)
    return plain(model, step)


def train(of_step, make_first=False, optimizer_class=torch.optim.Adam, **options):
    model = new_model(**options)
    if make_first:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = optimizer_class(parameters, lr=1e-2)
    model = rd.distribute_model(model, methods=("encode", "decode") if of_step is methods else ())
    if not make_first:
        parameters = model.parameters()
        optimizer = optimizer_class(model.parameters(), lr=1e-2)
    losses = []
    for step in range(4):
        optimizer.zero_grad()
        loss = of_step(model, step)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 0.5)
        optimizer.step()
        losses.append(loss.item())
    if os.environ["RETROFIT_STRATEGY"] == "fsdp":
        local = sum(parameter.to_local().numel() for parameter in model.parameters() if hasattr(parameter, "to_local"))
        whole = sum(parameter.numel() for parameter in model.parameters())
        assert abs(local / whole - 0.5) < 0.1, (local, whole)
        moments = [entry["exp_avg"] for entry in optimizer.state.values() if "exp_avg" in entry]
        assert all(hasattr(moment, "to_local") or moment.dim() == 0 for moment in moments)
    return losses, copy.deepcopy(model.state_dict())


cases = {
    function.__name__: (function, {})
    for function in (
        plain, two_calls, chained, methods, another_block_left_out_in_each_step, frozen_and_thawed, accumulated,
        attacked, weights_clamped,
    )
}
cases["tied weights"] = plain, {"tied": True}
cases["an optimizer made first"] = plain, {"make_first": True}
cases["SGD"] = plain, {"optimizer_class": torch.optim.SGD}
for name, (of_step, options) in cases.items():
    found = {}
    for strategy in ("ddp", "fsdp"):
        os.environ["RETROFIT_STRATEGY"] = strategy
        found[strategy] = train(of_step, **options)
    (losses, state), (sharded_losses, sharded_state) = found.values()
    assert list(state) == list(sharded_state), name
    torch.testing.assert_close(losses, sharded_losses, rtol=1e-5, atol=1e-7, msg=lambda text: f"{name}: {text}")
    for key in state:
        assert type(sharded_state[key]) is torch.Tensor
        torch.testing.assert_close(state[key], sharded_state[key], rtol=1e-5, atol=1e-6, msg=lambda t: f"{name}: {t}")
rd.cleanup_distributed()
"""
ONE_RANK = """

def main():
    model = new_model()
    containers = nn.ModuleDict({"net": model, "other": nn.Linear(2, 2)})
    containers["net"] = model = rd.distribute_model(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        model(data(step)).square().mean().backward()
        optimizer.step()
    state = model.state_dict()
    plain = new_model()
    plain.load_state_dict(state)
    common = torch.ones(3, 4)
    model.eval()
    if rd.is_main_process():  # what follows is called by rank 0 alone
        state_of_one, whole = model.state_dict(), containers.state_dict()
        assert all(torch.equal(state_of_one[name], state[name]) for name in state)
        assert all(torch.equal(whole[f"net.{name}"], state[name]) for name in state)
        assert type(optimizer.state_dict()["state"][0]["exp_avg"]) is torch.Tensor
        with torch.no_grad():
            for _ in range(3):
                torch.testing.assert_close(model(common), plain(common))
        torch.testing.assert_close(rd.model.run_alone(lambda own: own(common), model), plain(common))
        optimizer.state_dict()
    total = rd.sum_over_ranks(1)
    assert total == rd.get_world_size()
    for number, batch in enumerate(rd.share_batches([common * n for n in range(2 * total + 1)])):
        with torch.no_grad():
            torch.testing.assert_close(model(batch), plain(batch))
            model(batch) if rd.is_main_process() else None
    model.train()
    model(data(9)).square().mean().backward()
    optimizer.step()
    containers.load_state_dict({**containers.state_dict(), **{f"net.{name}": state[name] for name in state}})
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    if rd.is_main_process():
        torch.save({"net": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")


main()  # at whose end the other ranks drop the model
rd.cleanup_distributed()
"""


def test_a_sharded_training_is_that_of_ddp(tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(HEAD + SOUND)
    ended = launcher.run(tmp_path, "train.py", [], world_size=2, RETROFIT_STRATEGY="fsdp")
    assert set(ended["statuses"]) == {0}, "\n".join(ended["outputs"])


@pytest.mark.parametrize("number_of_ranks", [2, 3])
def test_one_rank_alone_may_save_and_evaluate(number_of_ranks: int, tmp_path: Path, launcher: Launcher) -> None:
    (tmp_path / "train.py").write_text(HEAD + ONE_RANK)
    ended = launcher.run(tmp_path, "train.py", [], world_size=number_of_ranks, RETROFIT_STRATEGY="fsdp")
    assert set(ended["statuses"]) == {0}, "\n".join(ended["outputs"])
    assert (tmp_path / "last.pt").is_file()


TRAIN = """\
model = rd.distribute_model(new_model())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
"""
STEP = "model(data(0)).square().mean().backward()\noptimizer.step()\n"
AS_INTERPRETER = """\
except Exception as error:
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)
"""
REFUSED = {
    "a step on one rank": (
        TRAIN + "model(data(0)).square().mean().backward()\nif rd.is_main_process():\n    optimizer.step()\n"
        "rd.barrier()\n",
        r"rank 0: barrier at train\.py:\d+.*different numbers of optimizer steps and loads \(1, 0\)",
    ),
    "a training forward on one rank": (
        TRAIN + "if rd.is_main_process():\n    model(data(0))\nrd.barrier()\n",
        r"rank 0: a forward of Net with gradients at train\.py:\d+; rank 1: barrier at train\.py:\d+.*take what only",
    ),
    "a rate of each rank": (
        TRAIN + "optimizer.param_groups[0]['lr'] = 0.1 * (1 + rd.get_rank())\n" + STEP + "rd.barrier()\n",
        "they used other parameters or another learning rate",
    ),
    "a save after a step": (
        TRAIN + STEP + "model(data(1)).square().mean().backward()\n"
        "state = model.state_dict() if rd.is_main_process() else None\noptimizer.step()\nrd.barrier()\n",
        r"rank 0: state_dict\(\) at train\.py:\d+.*save before or after a step",
    ),
    "a copy": (TRAIN + "ema = copy.deepcopy(model)\n", r"train\.py:\d+: .* cannot copy a model .*copy its state_dict"),
    "a whole model": (TRAIN + "torch.save(model, 'm.pt')\n", r"train\.py:\d+: .* cannot save a whole model"),
    "a penalty on weights": (
        TRAIN + "loss = model(data(0)).mean() + sum(p.square().sum() for p in model.parameters())\nloss.backward()\n",
        r"in \S+ \(.*train\.py:\d+\): a parameter that RETROFIT_STRATEGY=fsdp has sharded meets an ordinary tensor",
    ),
    "an average made before": (
        "ema = new_model()\n" + TRAIN + "for mean, p in zip(ema.parameters(), model.parameters()):\n"
        "    mean.data.mul_(0.9).add_(p.data, alpha=0.1)\n",
        r"train\.py:\d+\): a parameter that .*use the entries of state_dict\(\)",
    ),
    "a gradient of a gradient": (
        TRAIN + "x = data(0).requires_grad_()\ntorch.autograd.grad(model(x).sum(), x, create_graph=True)\n",
        r"a forward of Net at train\.py:\d+: .*cannot take a gradient of a gradient",
    ),
    "a layer called by itself": (
        "model = rd.distribute_model(new_model(), methods=['encode', 'last'])\n",
        r"train\.py:\d+: this training calls layers of Net by themselves \(last\)",
    ),
    "a tuple of parameters": (
        "model = new_model()\nkept = tuple(model.parameters())\nmodel = rd.distribute_model(model)\n",
        r"train\.py:\d+: a tuple has a parameter of this model from before",
    ),
    "a hook on a gradient": (
        "model = new_model()\nmodel.last.weight.register_hook(lambda g: g.clamp(-1, 1))\nrd.distribute_model(model)\n",
        r"train\.py:\d+: a parameter of Net has a hook on its gradient",
    ),
    "sparse gradients": (
        "rd.distribute_model(nn.Embedding(9, 4, sparse=True))\n",
        r"train\.py:\d+: Embedding has a layer with sparse gradients",
    ),
    "an option of DDP": (
        "rd.distribute_model(new_model(), static_graph=True)\n",
        r"train\.py:\d+: static_graph of distribute_model is DDP's own option",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_sharded_is_an_error_with_its_line(case: str, tmp_path: Path, launcher: Launcher) -> None:
    script, said = REFUSED[case]
    guarded = textwrap.indent(f"{script}rd.cleanup_distributed()\n", "    ")
    (tmp_path / "train.py").write_text(f"{HEAD}try:\n{guarded}{AS_INTERPRETER}")
    ended = launcher.run(tmp_path, "train.py", [], world_size=2, timeout_s=60, RETROFIT_STRATEGY="fsdp")
    assert set(ended["statuses"]) == {1}, "\n".join(ended["outputs"])
    assert re.search(said, "".join(ended["outputs"]).replace("\n", " ")), ended["outputs"]

"""Layers of the project that keep statistics of the batch, however they are reached."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted
from verify.projects.launch import Launcher

from retrofit.cli import main

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Norm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.register_buffer("average", torch.zeros(size))
        self.register_buffer("spread", torch.ones(size))

    def forward(self, x):
        if self.training:
            {kept}
        else:
            mean, var = self.average, self.spread
        return (x - mean) / (var + 1e-5).sqrt()


class Flow(nn.Sequential):
    def forward(self, x):
        for layer in self._modules.values():
            x = layer(x)
        return x


class Density(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), Norm(4)])

    def log_prob(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().sum(1)


layers = []
for _ in range(2):
    layers += [nn.Linear(4, 4), {layer}]
loader = DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True)
model = {model}
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        {loss}.mean().backward()
        optimizer.step()
"""
CONTAINER = {"model": "Flow(*layers)", "layer": "Norm(4)", "loss": "model(x).abs()"}
METHOD = {"model": "Density()", "layer": "nn.Linear(4, 4)", "loss": "model.log_prob(x)"}
TORCH = {"model": "Flow(*layers)", "layer": "nn.BatchNorm1d(4)", "loss": "model(x).abs()"}
MOMENTS = "mean, var = x.mean(0), x.var(0)"
KEPT = {
    "in place": f"{MOMENTS}; self.average.mul_(0.9).add_(0.1 * mean.detach())",
    "lerp": f"{MOMENTS}; self.average.lerp_(mean.detach(), 0.1)",
    "set again": f"{MOMENTS}; self.average = 0.9 * self.average + 0.1 * mean.detach()",
    "data": f"{MOMENTS}; self.average.data = 0.9 * self.average.data + 0.1 * mean.data",
    "pair": "var, mean = torch.var_mean(x, 0); self.spread.copy_(0.9 * self.spread + 0.1 * var.detach())",
    "counted": "mean, var = x.mean(0), x.size(0); self.average.lerp_(mean.detach(), 0.1)",
}
AVERAGED = {
    "plain": "mean = x.mean(0); var = (x - mean).pow(2).mean(0); self.average.lerp_(mean.data, 0.1)",
    "moved, permute": "y = x.permute(1, 0); mean, var = y.mean(1), 1; self.average.mul_(0.9).add_(0.1 * mean.data)",
    "moved, T": "mean, var = x.T.mean(1), 1; self.average.mul_(0.9).add_(0.1 * mean.detach())",
    "moved, function": "mean, var = torch.transpose(x, 0, 1).mean(1), 1; self.average.mul_(0.9).add_(0.1 * mean.data)",
    "attribute": "self.now = x.mean(0); mean, var = self.now, 1; self.average.mul_(0.9).add_(0.1 * self.now.data)",
}
HARMLESS = {
    "shares of each sample": "mean, var = self.average, 1; self.average = self.average + x / x.sum(1, keepdim=True)",
    **{
        f"shares, {moved}": f"y = x.{moved}; mean, var = self.average, 1; self.average = self.average + y / y.sum(1)"
        for moved in ("transpose(1, 2)", "transpose(-1, -2)", "permute(0, 2, 1)", "swapaxes(2, 1)", "movedim(1, -1)")
    },
    "of each sample, function": "y = torch.permute(x, (0, 2, 1)); mean, var = y.mean(1), 1; self.average += y.sum(1)",
    "spread of each sample": "y = x.transpose(-1, -2); self.now, mean = torch.std_mean(y, -1); self.now += 1; var = 1",
    "statistics of each sample": "self.now = x.mean(1, keepdim=True); mean, var = self.now, x.var(1, keepdim=True)",
    "a figure": f"{MOMENTS}; self.figure = 0.9 * self.figure + 0.1 * mean.detach()",
}


@pytest.mark.parametrize("reached", [CONTAINER, METHOD], ids=["container", "method"])
@pytest.mark.parametrize("form", KEPT)
def test_a_layer_that_keeps_statistics_of_the_batch_is_refused(tmp_path: Path, form: str, reached: dict) -> None:
    lines = converted(tmp_path, SCRIPT.format(kept=KEPT[form], **reached))
    (error,) = [line for line in lines if "one_process_only" in line]
    assert "is a statistic of the batches" in error or "keeps samples of the batches" in error


EVALUATED = (
    "mean, var = x.mean(0), 1; self.average.lerp_(mean.data, 0.1)\n        x = x - x.mean(0)\n"
    "        if self.training:\n            pass"
)


def test_a_mean_that_an_evaluation_takes_too_is_not_passed_over(tmp_path: Path) -> None:
    lines = converted(tmp_path, SCRIPT.format(kept=EVALUATED, **CONTAINER))
    assert any("one_process_only" in line for line in lines)
    result = conversion(tmp_path, SCRIPT.format(kept=EVALUATED, **METHOD))
    assert any("which an evaluation runs too" in finding.message for finding in result.findings)


@pytest.mark.parametrize("reached", [CONTAINER, METHOD])
@pytest.mark.parametrize("form", AVERAGED)
def test_the_means_of_a_layer_while_it_trains_are_those_of_all_ranks(tmp_path: Path, form: str, reached: dict) -> None:
    lines = "\n".join(converted(tmp_path, SCRIPT.format(**reached, kept=AVERAGED[form])))
    assert lines.count(".mean(") - 1 == lines.count("rd.loss.batch_mean(") > 0
    assert "one_process_only" not in lines


def test_means_over_an_axis_that_is_not_known_end_several_processes(tmp_path: Path) -> None:
    kept = "y = x.transpose(self.i, 1); mean, var = y.mean(1), 1; self.average.lerp_(mean.data, 0.1)"
    lines = converted(tmp_path, SCRIPT.format(kept=kept, **METHOD))
    assert any("one_process_only" in line for line in lines)


def test_processes_train_the_layer_of_one(tmp_path: Path, launcher: Launcher) -> None:
    """The last batch has 3 samples, 2 and 1 of the processes; the gradients of the means are of all of them, too."""
    text = SCRIPT.format(**CONTAINER, kept=AVERAGED["plain"]).replace("torch.randn(16, 4)", "torch.randn(19, 4)")
    text = text.replace("shuffle=True", "shuffle=False").replace("layers = []\n", "torch.manual_seed(0)\nlayers = []\n")
    text += "print([round(p.sum().item(), 3) for p in model.parameters()])\n"
    for name in ("alone", "together"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(text)
    assert main(["convert", str(tmp_path / "together" / "train.py"), "--write"]) == 0
    (alone,) = launcher.run(tmp_path / "alone", "train.py", [])["outputs"]
    run = launcher.run(tmp_path / "together", "train.py", [], world_size=2, RETROFIT_BATCH="global")
    assert run["statuses"] == [0, 0], run["outputs"]
    assert alone.strip() in run["outputs"][0]


ACTNORM = SCRIPT.replace(
    """        if self.training:
            {kept}
        else:
            mean, var = self.average, self.spread
        return (x - mean) / (var + 1e-5).sqrt()
""",
    """        {kept}
        return (x - self.loc) * self.scale

    def start(self, x):
        y = x.flatten(1).transpose(0, 1).reshape(x.size(1), -1)
        self.loc.data.copy_(y.mean(1))
        self.scale.data = 1 / y.std(1)
        self.is_set = True

    def start_unless_done(self, x):
        if self.is_set:
            return
        self.start(x)
""",
).replace(
    "        self.register_buffer",
    """        self.loc, self.scale = nn.Parameter(torch.zeros(size)), nn.Parameter(torch.ones(size))
        self.weight = nn.Parameter(torch.ones(size))
        self.is_set = False
        self.register_buffer("done", torch.tensor(0))
        self.register_buffer""",
    1,
)
SET_AT_FIRST = {
    "python flag": ("if not self.is_set: self.loc.data.copy_(x.mean(0)); self.is_set = True", "copy_({}.mean(0))"),
    "buffer": ("if self.done.item() == 0: self.loc.data = x.mean(0); self.done.fill_(1)", "data = {}.mean(0)"),
    "method": ("if not self.is_set: self.start(x)", "y = {}.flatten(1).transpose(0, 1).reshape(x.size(1), -1)"),
    "named before": (
        "y = x.detach()\n        if self.is_set == False: self.loc.data.copy_(y.mean(0)); self.is_set = True",
        "copy_(rd.data.gather_batch(y).mean(0))",
    ),
    "spread": ("if not self.is_set: s = x.std(0); self.scale.data.copy_(1 / s); self.is_set = True", "s = {}.std(0)"),
    "weight": (
        "if not self.is_set: self.weight.data.copy_(torch.log(1.0 / x.std(0))); self.is_set = True",
        "torch.log(1.0 / {}.std(0))",
    ),
    "tensor flag": (
        "if not self.done: self.loc.data.copy_(-x.mean(0)); self.done.copy_(torch.tensor(1))",
        "copy_(-{}.mean(0))",
    ),
}


@pytest.mark.parametrize("reached", [CONTAINER, METHOD], ids=["container", "method"])
@pytest.mark.parametrize("form", SET_AT_FIRST)
def test_a_parameter_set_at_the_first_batch_gets_the_whole_batch(tmp_path: Path, form: str, reached: dict) -> None:
    kept, expected = SET_AT_FIRST[form]
    text = "\n".join(converted(tmp_path, ACTNORM.format(kept=kept, **reached)))
    assert expected.format("rd.data.gather_batch(x)") in text
    assert "one_process_only" not in text
    assert text.count("gather_batch") == 1


@pytest.mark.parametrize("form", HARMLESS)
def test_other_layers_are_left_as_they_are(tmp_path: Path, form: str) -> None:
    script = SCRIPT.format(kept=HARMLESS[form], **CONTAINER)
    assert "one_process_only" not in "".join(converted(tmp_path, script))


def test_a_class_that_nothing_makes_is_left_as_it_is(tmp_path: Path) -> None:
    script = SCRIPT.format(kept=KEPT["in place"], **TORCH).replace("Norm(4)])", "nn.BatchNorm1d(4)])")
    assert "one_process_only" not in "".join(converted(tmp_path, script))


def test_a_term_that_each_call_sets_first_keeps_no_statistic(tmp_path: Path) -> None:
    terms = "self.term = self.energy(x); self.term = self.term.mean(); return self.term"
    method = f"    def energy(self, x):\n        return self.log_prob(x)\n\n    def loss(self, x):\n        {terms}\n"
    script = SCRIPT.format(kept=MOMENTS, **{**METHOD, "loss": "model.loss(x)"})
    script = script.replace("nn.ModuleList([nn.Linear(4, 4), Norm(4)])", "nn.ModuleList([nn.Linear(4, 4)])")
    lines = converted(tmp_path, script.replace("    def log_prob(", f"{method}\n    def log_prob("))
    assert not any("one_process_only" in line for line in lines)

"""Models of a library's class, trained through methods and parts that cannot be read, are wrapped or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

SCRIPT = """\
import torch
from flows import Flow, build, integrate
from torch import nn, optim
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.base = nn.Linear(4, 4), build()

    def forward(self, x):
        return self.head(self.base.encode(x))


class Both:
    def __init__(self):
        self.flow = build()

    def loss(self, x):
        return -self.flow.log_prob(x).mean()


def error(net, x):
    return F.mse_loss(net.decode(net.encode(x)), x)


def terms(net, x):
    found = []
    found.append(-net.log_prob(x).mean())
    found += [x.square().mean()]
    return found


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
flow, net, both, probe = Flow(4), nn.Linear(4, 4), Both(), Probe()
models = {"flow": build()}
optimizer = optim.SGD(PARAMETERS, lr=0.1)
for (x,) in loader:
    flow.train()
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
    flow.report(loss)
"""
FLOW, NET = "*flow.parameters()", "*net.parameters()"


def script(loss: str, *parameters: str) -> str:
    return SCRIPT.replace("PARAMETERS", f"[{', '.join(parameters)}]").replace("LOSS", loss)


@pytest.mark.parametrize(
    ("loss", "parameters", "wrapped"),
    [
        ("F.mse_loss(flow.forward(x), x)", [FLOW], ["flow = rd.distribute_model(flow)"]),
        ("-flow.log_prob(x).mean()", [FLOW], ['flow = rd.distribute_model(flow, methods=["log_prob"])']),
        ("error(flow, x)", [FLOW], ['flow = rd.distribute_model(flow, methods=["decode", "encode"])']),
        (
            "-flow.log_prob(net(x)).mean()",
            [FLOW, NET],
            ['flow = rd.distribute_model(flow, methods=["log_prob"])', "net = rd.distribute_model(net)"],
        ),
        (
            "both.loss(net(x))",
            ["*both.flow.parameters()", NET],
            ['self.flow = rd.distribute_model(self.flow, methods=["log_prob"])', "net = rd.distribute_model(net)"],
        ),
        ("F.mse_loss(probe(x), x)", ["*probe.parameters()"], ["probe = rd.distribute_model(probe)"]),
        (
            "F.mse_loss(probe.base(x), x)",
            ["*probe.parameters()"],
            ['probe = rd.distribute_model(probe, methods=["base"])'],
        ),
        (
            'sum({"fit": net(x).mean(), "flow": -flow.log_prob(x).mean()}.values())',
            [FLOW, NET],
            ['flow = rd.distribute_model(flow, methods=["log_prob"])', "net = rd.distribute_model(net)"],
        ),
        (
            "torch.stack(terms(flow, net(x))).sum()",
            [FLOW, NET],
            ['flow = rd.distribute_model(flow, methods=["log_prob"])', "net = rd.distribute_model(net)"],
        ),
        ("-flow.log_prob(net(x)).mean()", [NET], ["net = rd.distribute_model(net)"]),  # flow is frozen
        (
            "F.mse_loss(net(x), x) + sum(p.norm() for p in flow.parameters())",
            [NET],
            ["net = rd.distribute_model(net)"],
        ),
        (
            '-models["flow"].log_prob(x).mean()',
            ['*models["flow"].parameters()'],
            ['models = rd.model.distribute_models(models, methods=["log_prob"])'],
        ),
    ],
)
def test_what_the_loss_comes_from_is_wrapped(
    tmp_path: Path, loss: str, parameters: list[str], wrapped: list[str]
) -> None:
    lines = converted(tmp_path, script(loss, *parameters))
    assert sorted(line for line in lines if "distribute_model" in line) == sorted(wrapped)


@pytest.mark.parametrize(
    "loss",
    [
        "F.mse_loss(integrate(flow, net(x)), x)",
        "F.mse_loss(net(next(map(flow, [x]))), x)",
        "F.mse_loss(integrate(function=flow, start=net(x)), x)",
        "F.mse_loss(nn.Sequential(net, flow)(net(x)), x)",
    ],
)
def test_a_model_that_a_library_runs_is_refused(tmp_path: Path, loss: str) -> None:
    result = conversion(tmp_path, script(loss, FLOW, NET))
    assert {finding.kind for finding in result.refusals} == {"model-not-followed"}


SHOWN = """\
import torch
from flows import AutoFlow
from meters import Meter
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4)
flow, meter = AutoFlow.from_pretrained("base"), Meter()
optimizer = torch.optim.SGD(flow.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    loss = flow(x, labels=x).loss
    loss.backward()
    optimizer.step()
    meter(x)
print(flow.config.hidden_size)
torch.save(flow.state_dict(), "flow.pt")
print(meter.value)
"""


def test_a_model_of_a_library_keeps_no_batch_and_a_meter_may(tmp_path: Path) -> None:
    listed = [str(finding.message) for finding in conversion(tmp_path, SHOWN).listed]
    assert len(listed) == 1 and "meter.value" in listed[0]

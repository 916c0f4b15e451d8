"""Updates past DDP: gradients of parameters as values, copies that are trained, steps made of what hooks keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversion import conversion, converted

HEAD = """\
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3), torch.randn(16, 1)), 4, shuffle=True)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
criterion = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOOP = "for x, y in loader:" + STEP
PARAMETER_GRADIENTS = {
    "inner_step": """
for x, y in loader:
    weights = list(model.parameters())
    grads = torch.autograd.grad(criterion(model(x), y), weights, create_graph=True)
    fast = [w - 0.1 * g for w, g in zip(weights, grads)]
    hidden = torch.relu(nn.functional.linear(x, fast[0], fast[1]))
    loss = criterion(nn.functional.linear(hidden, fast[2], fast[3]), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "names_of_weights": """
def inner(x, y):
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    grads = torch.autograd.grad(criterion(model(x), y), weights.values())
    return {name: weight - 0.1 * grad for (name, weight), grad in zip(weights.items(), grads)}


for x, y in loader:
    loss = criterion(torch.func.functional_call(model, inner(x, y), x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "unrolled_copy": """
class Architect:
    def __init__(self, model):
        self.model = model

    def step(self, x, y):
        loss = criterion(self.model(x), y)
        grads = torch.autograd.grad(loss, inputs=self.model.parameters())
        for weight, grad in zip(self.model.parameters(), grads):
            weight.data.sub_(0.01 * grad)


architect = Architect(model)
for x, y in loader:
    architect.step(x, y)
"""
    + STEP.lstrip("\n"),
    "weight_of_a_loss": """
def balance(first, second):
    last = model[2].weight
    of_first = torch.autograd.grad(first, last, retain_graph=True)[0]
    of_second = torch.autograd.grad(second, last, retain_graph=True)[0]
    return (of_first.norm() / (of_second.norm() + 1e-4)).detach()


for x, y in loader:
    out = model(x)
    first, second = criterion(out, y), out.abs().mean()
    loss = first + balance(first, second) * second
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "functional": """
def of(weights, x, y):
    return criterion(torch.func.functional_call(model, weights, x), y)


for x, y in loader:
    weights = dict(model.named_parameters())
    derive = torch.func.grad(of)
    grads = derive(weights, x, y)
    loss = of({name: weight - 0.1 * grads[name] for name, weight in weights.items()}, x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "penalty_on_weights": """
for x, y in loader:
    loss = criterion(model(x), y)
    grads = torch.autograd.grad(loss, [p for p in model.parameters()], create_graph=True)
    loss = loss + sum(grad.pow(2).sum() for grad in grads)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}
TRAINED_COPIES = {
    "argument": """
def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.state_dict()


for epoch in range(2):
    model.load_state_dict(train(model=copy.deepcopy(model)))
    with torch.no_grad():
        print(epoch, sum(criterion(model(x), y).item() for x, y in loader))
""",
    "keyword": """
def train(client, rounds):
    optimizer = torch.optim.SGD(list(client.parameters()), lr=0.1)
    for _ in range(rounds):
        for x, y in loader:
            loss = criterion(client(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return client


for epoch in range(2):
    model.load_state_dict(train(rounds=2, client=copy.deepcopy(model).train()).state_dict())
    with torch.no_grad():
        print(epoch, sum(criterion(model(x), y).item() for x, y in loader))
""",
    "method": """
class Local:
    def update(self, net):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in loader:
            loss = criterion(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return net.state_dict()

    def test(self, net):
        net.eval()
        with torch.no_grad():
            return sum(criterion(net(x), y).item() for x, y in loader)


for epoch in range(2):
    local = Local()
    model.load_state_dict(local.update(copy.deepcopy(model)))
    print(local.test(model))
""",
    "returned": """
def fresh():
    return copy.deepcopy(model)


def train(local):
    inner = torch.optim.SGD(local.parameters(), lr=0.1)
    for x, y in loader:
        loss = criterion(local(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()


for epoch in range(2):
    train(fresh())
""",
}
CLASS = """
class Preconditioned(torch.optim.Optimizer):
    def __init__(self, model):
        super().__init__(model.parameters(), {"lr": 0.1})
        self.kept = {}
        for layer in model.modules():
            if isinstance(layer, nn.Linear):
                HOOK

    def keep(self, layer, given, *others):
        x = given[0].detach()
        KEEP

    @torch.no_grad()
    def step(self):
        for layer, kept in self.kept.items():
            layer.weight.grad.copy_(layer.weight.grad @ torch.linalg.inv(kept + torch.eye(len(kept))))
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-0.1)


optimizer = Preconditioned(model)
"""


def optimizer_of(hook: str, keep: str) -> str:
    return CLASS.replace("HOOK", f"layer.{hook}").replace("KEEP", keep) + LOOP


WRAPPED_COPIES = {
    "client": """
class Client:
    def __init__(self, model):
        self.model = copy.deepcopy(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def train(self):
        for x, y in loader:
            loss = criterion(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


for epoch in range(2):
    client = Client(model)
    client.train()
    model.load_state_dict(client.model.state_dict())
""",
    "local": """
for epoch in range(2):
    local = copy.deepcopy(model)
    inner = torch.optim.SGD(local.parameters(), lr=0.1)
    for x, y in loader:
        loss = criterion(local(x), y)
        inner.zero_grad()
        loss.backward()
        inner.step()
    model.load_state_dict(local.state_dict())
""",
    "list": """
clients = [copy.deepcopy(model) for _ in range(3)]
for epoch in range(2):
    for client in clients:
        inner = torch.optim.SGD(client.parameters(), lr=0.1)
        for x, y in loader:
            loss = criterion(client(x), y)
            inner.zero_grad()
            loss.backward()
            inner.step()
""",
}
HOOKED_STEPS = {
    "inputs": optimizer_of("register_forward_pre_hook(self.keep)", "self.kept[layer] = x.t() @ x"),
    "gradients": optimizer_of("register_full_backward_hook(self.keep)", "self.kept[layer] = x.t() @ x"),
    "running": optimizer_of(
        "register_forward_hook(self.keep)", "self.kept.setdefault(layer, torch.zeros(3, 3)).mul_(0.9).add_(x.t() @ x)"
    ),
    "closure": """
kept = {}


def hook_for(name):
    def keep(layer, given, output):
        kept[name] = given[0].detach().pow(2).mean()

    return keep


model[0].register_forward_hook(hook_for("first"))
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    model[0].weight.grad.div_(kept["first"] + 1e-3)
    optimizer.step()
""",
    "next to it": """
class Preconditioner:
    def __init__(self, model):
        self.scale = {}
        self.layers = [layer for layer in model if isinstance(layer, nn.Linear)]
        for layer in self.layers:
            layer.register_forward_pre_hook(self.keep)

    def keep(self, layer, given):
        self.scale[layer] = given[0].detach().norm()

    def step(self):
        for layer in self.layers:
            layer.weight.grad = layer.weight.grad / self.scale[layer]


preconditioner = Preconditioner(model)
for x, y in loader:
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    preconditioner.step()
    optimizer.step()
""",
}
TABLE_OF_COPIES = """
table = {"local": lambda: copy.deepcopy(model)}


def train(name):
    optimizer = torch.optim.SGD(table[name]().parameters(), lr=0.1)
    for x, y in loader:
        loss = criterion(table[name]()(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train("local")
"""
SOUND = {
    "penalty_on_inputs": """
for x, y in loader:
    mixed = (x + 0.1 * torch.randn_like(x)).requires_grad_(True)
    out = model(mixed)
    grads = torch.autograd.grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)[0]
    loss = criterion(model(x), y) + ((grads.norm(2, dim=1) - 1) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "norm_shown": """
for x, y in loader:
    loss = criterion(model(x), y)
    grads = torch.autograd.grad(loss, model.parameters(), retain_graph=True)
    norm = sum(grad.norm() for grad in grads)
    print(norm)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "average": """
average = copy.deepcopy(model).eval()
"""
    + LOOP
    + """
    with torch.no_grad():
        for kept, now in zip(average.parameters(), model.parameters()):
            kept.data.mul_(0.9).add_(now.data, alpha=0.1)
""",
    "teacher": """
teacher = copy.deepcopy(model)
for x, y in loader:
    with torch.no_grad():
        target = teacher(x)
    out = model(x)
    loss = criterion(out, y) + criterion(out, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "best_state": LOOP + "    best = copy.deepcopy(model.state_dict())\nmodel.load_state_dict(best)\n",
    "start_is_a_copy": """
net = copy.deepcopy(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
"""
    + LOOP.replace("model(", "net("),
    "layers_shown": """
shown = {}


def keep(layer, given, output):
    shown["first"] = output.detach().mean().item()


model[0].register_forward_hook(keep)
"""
    + LOOP
    + "    print(shown)\n",
    "own_optimizer": """
class Scaled(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad / (p.grad.norm() + 1), alpha=-0.1)


optimizer = Scaled(model.parameters())
"""
    + LOOP,
}


def kinds(folder: Path, body: str) -> set[str]:
    return {finding.kind for finding in conversion(folder, HEAD + body).refusals}


@pytest.mark.parametrize("name", PARAMETER_GRADIENTS)
def test_gradients_of_parameters_as_values_are_refused(name: str, tmp_path: Path) -> None:
    assert "parameter-gradients" in kinds(tmp_path, PARAMETER_GRADIENTS[name])


def test_a_copy_of_a_table_is_refused(tmp_path: Path) -> None:
    assert kinds(tmp_path, TABLE_OF_COPIES) & {"trained-copy", "no-model"}


@pytest.mark.parametrize(
    ("name", "parameter"), [("argument", "model"), ("keyword", "client"), ("method", "net"), ("returned", "local")]
)
def test_a_copy_that_a_function_gets_is_wrapped_there(name: str, parameter: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + TRAINED_COPIES[name])
    function = next(
        number for number, line in enumerate(lines) if line.lstrip().startswith("def ") and parameter in line
    )
    assert lines[function + 1].strip() == f"{parameter} = rd.distribute_model({parameter})"


@pytest.mark.parametrize(("name", "wrapped"), [("client", "self.model"), ("local", "local")])
def test_a_copy_in_a_variable_is_wrapped(name: str, wrapped: str, tmp_path: Path) -> None:
    assert f"{wrapped} = rd.distribute_model({wrapped})" in converted(tmp_path, HEAD + WRAPPED_COPIES[name])


def test_copies_in_a_list_are_wrapped(tmp_path: Path) -> None:
    lines = converted(tmp_path, HEAD + WRAPPED_COPIES["list"])
    assert "clients = rd.model.distribute_models(clients)" in lines


def test_a_conditional_value_of_a_lambda_is_read(tmp_path: Path) -> None:
    body = "choose = lambda name: open(name) if name else None\nchoose('')\n" + LOOP
    assert conversion(tmp_path, HEAD + body).files


@pytest.mark.parametrize("name", HOOKED_STEPS)
def test_a_step_made_of_what_hooks_keep_is_refused(name: str, tmp_path: Path) -> None:
    assert "hooked-step" in kinds(tmp_path, HOOKED_STEPS[name])


@pytest.mark.parametrize("name", SOUND)
def test_what_ddp_averages_all_of_is_converted(name: str, tmp_path: Path) -> None:
    assert kinds(tmp_path, SOUND[name]) == set()


def test_an_inner_step_under_an_option_is_an_error_in_several_processes(tmp_path: Path) -> None:
    inner = """
import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--inner", action="store_true")
args = parser.parse_args()
for x, y in loader:
    if args.inner:
        grads = torch.autograd.grad(criterion(model(x), y), list(model.parameters()))
        for weight, grad in zip(model.parameters(), grads):
            weight.data.sub_(0.01 * grad)
"""
    result = conversion(tmp_path, HEAD + inner + STEP.lstrip("\n"))
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "train.py")
    assert "        rd.process_group.one_process_only(" in text

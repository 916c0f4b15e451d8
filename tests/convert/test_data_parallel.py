"""One process that drives several GPUs is taken out in each of its forms, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from convert.conversion import add_runtime, conversion, converted
from torch import nn
from verify.projects.launch import Launcher

HEAD = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(3, 1)

    def forward(self, x, *more, **options):
        return BODY


"""
MAKE = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = Net()
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
TRAIN = """\
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        MODEL.pow(2).mean().backward()
        optimizer.step()
"""
PASSING = """\
class Passing(nn.DataParallel):
    '''Has the attributes of the model as well.'''

    def __init__(self, module):
        super().__init__(module)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


"""
ADDING = """\
class Adding(nn.DataParallel):
    def gather(self, outputs, output_device):
        return outputs


"""


def script(body: str = "self.main(x)", call: str = "model(x)", before: str = "", after: str = "") -> str:
    return HEAD.replace("BODY", body) + before + MAKE + after + TRAIN.replace("MODEL", call)


@pytest.mark.parametrize(
    ("body", "plain"),
    [
        ("nn.parallel.data_parallel(self.main, x, range(2))", "self.main(x)"),
        ("nn.parallel.data_parallel(self.main, (x, x.cuda()), [0, 1], dim=0).abs()", "self.main(x, x.cuda()).abs()"),
        ("nn.parallel.data_parallel(self.main, ((x + 1), (x)))", "self.main((x + 1), (x))"),
        ("nn.parallel.data_parallel(self.main, (x,), module_kwargs=options)", "self.main(x,**options)"),
        ("nn.parallel.data_parallel(self.main, more, module_kwargs=options)", "self.main(*more, **options)"),
        ("nn.parallel.data_parallel(self.main, inputs=x + 1, device_ids=[0])", "self.main(x + 1)"),
    ],
)
def test_data_parallel_as_a_function_becomes_a_call_of_its_module(body: str, plain: str, tmp_path: Path) -> None:
    assert f"return {plain}" in converted(tmp_path, script(body))


def test_inputs_that_may_be_a_tuple_are_left_to_the_user(tmp_path: Path) -> None:
    body = "nn.parallel.data_parallel(self.main, (x, x) if more else x * 2)"
    (finding,) = conversion(tmp_path, script(body)).refusals
    assert "write module(inputs)" in finding.refusal and finding.place.line == 12


COPIES = """\
def on_all_gpus(x):
    ids = list(range(torch.cuda.device_count()))
    return nn.parallel.parallel_apply(nn.parallel.replicate(model, ids), nn.parallel.scatter((x,), ids))[0]


"""


@pytest.mark.parametrize(
    "before, count, kept",
    [
        ("", "torch.cuda.device_count()", "own_gpu_count(torch.cuda.device_count()) > 1"),
        ("num_gpus = torch.cuda.device_count()\n", "num_gpus", "own_gpu_count(num_gpus) > 1"),
    ],
)
def test_a_model_copied_to_all_gpus_is_run_on_one(before: str, count: str, kept: str, tmp_path: Path) -> None:
    chosen = TRAIN.replace("MODEL", f"(on_all_gpus(x) if {count} > 1 else model(x))")
    script = HEAD.replace("BODY", "self.main(x)") + COPIES + MAKE + before + chosen
    text = "\n".join(converted(tmp_path, script))
    assert kept in text and "rd.process_group.one_process_only(" in text


def test_a_model_that_is_always_copied_to_all_gpus_is_left_to_the_user(tmp_path: Path) -> None:
    script = HEAD.replace("BODY", "self.main(x)") + COPIES + MAKE + TRAIN.replace("MODEL", "on_all_gpus(x)")
    assert any(
        "copies the model to several GPUs" in refusal.refusal for refusal in conversion(tmp_path, script).refusals
    )


def test_a_model_that_is_trained_through_the_function_is_wrapped(tmp_path: Path) -> None:
    lines = converted(tmp_path, script(call="nn.parallel.data_parallel(model, x, [0, 1])"))
    assert "model(x).pow(2).mean().backward()" in lines and "model = rd.distribute_model(model)" in lines


def test_a_class_that_only_forwards_attributes_is_kept_for_one_process(tmp_path: Path) -> None:
    text = script(before=PASSING, after="model = Passing(model)\nprint(model.module.main, model.main)\n")
    lines = converted(tmp_path, text)
    assert "model = rd.model.data_parallel(Passing, model)" in lines and "print(model.module.main, model.main)" in lines


def test_a_class_that_adds_something_is_left_to_the_user(tmp_path: Path) -> None:
    (finding,) = conversion(tmp_path, script(before=ADDING, after="model = Adding(model)\n")).refusals
    assert finding.refusal == "Adding is more than DataParallel: gather"


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ("isinstance(model, nn.DataParallel)", "rd.model.is_data_parallel(model)"),
        ("isinstance(model, (nn.DataParallel, nn.Sequential))", "rd.model.is_data_parallel(model)"),
        ("type(model) is nn.DataParallel", "rd.model.is_data_parallel(model)"),
        ("type(model) in (nn.DataParallel,)", "rd.model.is_data_parallel(model)"),
        ("isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))", ""),
        ("isinstance(model, nn.Linear)", "isinstance(rd.model.script_model(model), nn.Linear)"),
        ("hasattr(model, 'module')", ""),
    ],
)
def test_a_test_for_the_wrapper_accepts_the_distributed_one_too(asked: str, answered: str, tmp_path: Path) -> None:
    after = f"model = nn.DataParallel(model, device_ids=[0, 1])\nnet = model.module if {asked} else model\n"
    lines = converted(tmp_path, script(after=after))
    assert "model = rd.model.data_parallel(nn.DataParallel, model, device_ids=[0, 1])" in lines
    assert f"net = model.module if {answered or asked} else model" in lines


def test_running_the_module_in_training_goes_through_the_wrapper(tmp_path: Path) -> None:
    after = "model = nn.DataParallel(model)\n"
    lines = converted(tmp_path, script(call="model.module(x)", after=after))
    assert "model(x).pow(2).mean().backward()" in lines


PROJECT = """\
import argparse, copy, os, torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--load", default="")
parser.add_argument("--save", default="model.pt")
args = parser.parse_args()
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.DataParallel(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
average = copy.deepcopy(model)
optimizer = optim.SGD(model.parameters(), lr=0.1)
if args.load:
    SAVED.load_state_dict(torch.load(args.load)["model"])
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
model.eval()
names = sorted(name for name, _ in model.named_parameters())
inner = (model.module if isinstance(model, nn.DataParallel) else model).state_dict()
state = {"model": SAVED.state_dict(), "average": average.state_dict(), "names": names, "inner": sorted(inner)}
torch.save(state, args.save)
torch.save(model, "whole.pt")
"""
TEST = """\
import sys, torch
from torch import nn
model = MAKE
model.load_state_dict(torch.load(sys.argv[1])["model"])
whole = torch.load("whole.pt", weights_only=False)
assert isinstance(whole, nn.DataParallel) and torch.equal(whole.module[0].weight, list(model.parameters())[0])
"""
NET = "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))"


@pytest.mark.parametrize(("saved", "prefix"), [("model", "module."), ("model.module", "")])
def test_checkpoints_go_from_the_original_to_the_converted_script_and_back(
    saved: str, prefix: str, launcher: Launcher, tmp_path: Path
) -> None:
    original, other = tmp_path / "original", tmp_path / "converted"
    text = PROJECT.replace("SAVED", saved)
    for folder in (original, other):
        folder.mkdir()
        (folder / "train.py").write_text(text)
        (folder / "test.py").write_text(TEST.replace("MAKE", f"nn.DataParallel({NET})" if prefix else NET))
    (other / "train.py").write_text(conversion(other, text).files[0].text)
    add_runtime(other)

    def run(folder: Path, script: str, arguments: list[str], world_size: int = 1) -> None:
        result = launcher.run(folder, script, arguments, world_size, RETROFIT_BATCH="global")
        assert result["statuses"] == [0] * world_size, result["outputs"]

    run(original, "train.py", ["--save", "../first.pt"])
    first = torch.load(tmp_path / "first.pt")
    assert {name.startswith("module.") for name in first["model"]} == {bool(prefix)}
    for world_size in (1, 2):
        path = f"../after_{world_size}.pt"
        run(other, "train.py", ["--load", "../first.pt", "--save", path], world_size)
        state = torch.load(other / path)
        for part in ("model", "average"):
            assert list(state[part]) == list(first[part]), f"{part} in {world_size} processes"
        assert (state["names"], state["inner"]) == (first["names"], first["inner"])
        run(other, "test.py", [path])
    run(original, "train.py", ["--load", "../after_2.pt", "--save", "../again.pt"])
    # Without the prefix where the script writes it, and with it where it does not: both are read.
    flipped = {name[len(prefix) :] if prefix else f"module.{name}": value for name, value in first["model"].items()}
    torch.save({"model": flipped}, tmp_path / "flipped.pt")
    for world_size in (1, 2):
        run(other, "train.py", ["--load", "../flipped.pt", "--save", "../flipped_out.pt"], world_size)
        out, straight = torch.load(tmp_path / "flipped_out.pt"), torch.load(tmp_path / f"after_{world_size}.pt")
        assert all(torch.equal(value, straight["model"][name]) for name, value in out["model"].items())


TWO_NAMES = """\
import copy, os, torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


def test(net):
    net.eval()
    with torch.no_grad():
        return sum(net(x).sum().item() for (x,) in DataLoader(TensorDataset(torch.randn(4, 3)), 4))


torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
parallel = nn.DataParallel(net)
optimizer = optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    net.train()
    for (x,) in loader:
        optimizer.zero_grad()
        parallel(x).pow(2).mean().backward()
        optimizer.step()
    test(net)
parallel.load_state_dict(parallel.state_dict())
both = {"net": net.state_dict(), "parallel": parallel.state_dict(), "copy": copy.deepcopy(net).state_dict()}
names = [[name for name, _ in model.named_parameters()] for model in (net, parallel, parallel.module)]
names += [[name for name, _ in model.named_buffers("all")] for model in (net, parallel)]
torch.save({**both, "names": names}, "states.pt")
torch.save(net, "net.pt")
torch.save(parallel, "parallel.pt")
"""


def test_a_model_and_its_data_parallel_keep_names_of_their_own(launcher: Launcher, tmp_path: Path) -> None:
    original, other = tmp_path / "original", tmp_path / "converted"
    for folder in (original, other):
        folder.mkdir()
    (original / "train.py").write_text(TWO_NAMES)
    changed = conversion(other, TWO_NAMES).files[0].text
    assert "net = rd.distribute_model(net)\nparallel = rd.model.data_parallel(nn.DataParallel, net)" in changed
    (other / "train.py").write_text(changed)
    add_runtime(other)
    saved = []
    for folder, world_size in ((original, 1), (other, 1), (other, 2)):
        result = launcher.run(folder, "train.py", [], world_size, RETROFIT_BATCH="global")
        assert result["statuses"] == [0] * world_size, result["outputs"]
        saved.append((torch.load(folder / "states.pt"), torch.load(folder / "net.pt", weights_only=False)))
        assert type(torch.load(folder / "parallel.pt", weights_only=False)) is nn.DataParallel
    first, _ = saved[0]
    for states, net in saved:
        assert states["names"] == first["names"]
        assert type(net) is nn.Sequential
        for part in ("net", "parallel", "copy"):
            assert list(states[part]) == list(first[part])
        assert all(torch.equal(value, states["parallel"][f"module.{name}"]) for name, value in states["net"].items())

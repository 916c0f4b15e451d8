"""One process that drives several GPUs is taken out in each of its forms, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import conversion, converted

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
        ("nn.parallel.data_parallel(self.main, (x, x.cuda()), [0, 1], dim=0).mean()", "self.main(x, x.cuda()).mean()"),
        ("nn.parallel.data_parallel(self.main, ((x + 1), (x)))", "self.main((x + 1), (x))"),
        ("nn.parallel.data_parallel(self.main, (x,), module_kwargs=options)", "self.main(x,**options)"),
        ("nn.parallel.data_parallel(self.main, more, module_kwargs=options)", "self.main(*more, **options)"),
        ("nn.parallel.data_parallel(self.main, inputs=x + 1, device_ids=[0])", "self.main(x + 1)"),
    ],
)
def test_the_function_is_a_call_of_its_module(body: str, plain: str, tmp_path: Path) -> None:
    assert f"return {plain}" in converted(tmp_path, script(body))


def test_inputs_that_may_or_may_not_be_a_tuple_are_left_to_the_user(tmp_path: Path) -> None:
    body = "nn.parallel.data_parallel(self.main, (x, x) if more else x * 2)"
    (finding,) = conversion(tmp_path, script(body)).refusals
    assert "write module(inputs)" in finding.refusal and finding.place.line == 12


def test_a_model_that_is_trained_through_the_function_is_wrapped(tmp_path: Path) -> None:
    lines = converted(tmp_path, script(call="nn.parallel.data_parallel(model, x, [0, 1])"))
    assert "model(x).pow(2).mean().backward()" in lines and "model = rd.distribute_model(model)" in lines


def test_a_class_that_only_shows_the_attributes_of_the_model_is_removed(tmp_path: Path) -> None:
    text = script(before=PASSING, after="model = Passing(model)\nprint(model.module.main, model.main)\n")
    lines = converted(tmp_path, text)
    assert "model = Passing(model)" not in lines and "print(model.main, model.main)" in lines


def test_a_class_that_adds_something_is_left_to_the_user(tmp_path: Path) -> None:
    (finding,) = conversion(tmp_path, script(before=ADDING, after="model = Adding(model)\n")).refusals
    assert finding.refusal == "Adding is more than DataParallel: gather"


def test_a_call_that_is_for_it_alone_goes_with_it(tmp_path: Path) -> None:
    insisting = "def patch(model):\n    assert isinstance(model, nn.DataParallel)\n    return 1\n\n\n"
    after = "if torch.cuda.is_available():\n    model = nn.DataParallel(model)\n    patch(model)\n"
    lines = converted(tmp_path, script(before=insisting, after=after))
    assert not {"patch(model)", "model = nn.DataParallel(model)", "pass"} & set(lines)
    (finding,) = conversion(tmp_path, script(before=insisting, after=after.replace("patch", "n = patch"))).refusals
    assert "DataParallel alone" in finding.refusal


@pytest.mark.parametrize("head", ["if True:", "with torch.no_grad():"])
def test_no_block_is_left_empty(head: str, tmp_path: Path) -> None:
    wrapping = "    model = nn.DataParallel(model)\n    other = nn.DataParallel(other)\n"
    lines = converted(tmp_path, script(after=f"other = Net()\n{head}\n{wrapping}"))
    assert not any("DataParallel" in line for line in lines)
    assert (head in lines) is (head != "if True:")

"""A training loop of a base class runs the model that the classes derived from it make."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

LOOP = """\
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Loop:
    {attribute}

    def __init__(self):
        self.rate = 0.1
        {init}

    def setup(self):
        raise NotImplementedError

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            self.step(x, y).backward()
            self.optimizer.step()

    def step(self, x, y):
        return nn.functional.mse_loss(self.{name}(x), y)


{derived}


torch.manual_seed(0)
Fitting().fit(DataLoader(TensorDataset(torch.randn(16, 4), torch.randn(16, 2)), 4, shuffle=True))
"""
OPTIMIZER = "self.optimizer = optim.SGD(self.model.parameters(), lr=self.rate)"
MADE = f"self.model = nn.Linear(4, 2)\n        {OPTIMIZER}"
BEFORE = """\
class Fitting(Loop):
    def __init__(self):
        self.model = nn.Linear(4, 2)
        super().__init__()


class Wide(Loop):
    def __init__(self):
        self.model = nn.Linear(4, 8)
        super().__init__()"""
AFTER = f"""\
class Fitting(Loop):
    def __init__(self):
        super().__init__()
        {MADE}"""
BY_METHOD = f"""\
class Fitting(Loop):
    def setup(self):
        {MADE}"""
SIBLING = f"""\
class Holder:
    def __init__(self):
        self.rate = 0.1
        {MADE}


class Fitting(Holder, Loop):
    pass"""
PROPERTY = f"""\
class Fitting(Loop):
    def __init__(self):
        super().__init__()
        {MADE}

    @property
    def network(self):
        return self.model"""
ABSTRACT = "@property\n    def network(self):\n        raise NotImplementedError"
FORMS = {
    "before the base": {"init": OPTIMIZER, "derived": BEFORE},
    "after the base": {"derived": AFTER},
    "None in the class": {"attribute": "model = None", "derived": AFTER},
    "None in the constructor": {"init": "self.model = None\n        self.setup()", "derived": BY_METHOD},
    "by a method": {"init": "self.setup()", "derived": BY_METHOD},
    "by another base": {"derived": SIBLING},
    "by a property": {"derived": PROPERTY, "name": "network", "attribute": ABSTRACT},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_model_is_wrapped_where_the_derived_class_makes_it(tmp_path: Path, form: str) -> None:
    texts = {"attribute": "steps = 0", "init": "self.steps = 0", "name": "model", **FORMS[form]}
    lines = converted(tmp_path, LOOP.format(**texts))
    place = lines.index("self.model = rd.distribute_model(self.model)")
    assert lines[place - 1] == "self.model = nn.Linear(4, 2)"
    assert "self.optimizer = optim.SGD(self.model.parameters(), lr=rd.scaled_lr(self.rate))" in lines


def test_each_class_that_is_used_has_its_model_wrapped(tmp_path: Path) -> None:
    text = LOOP.format(attribute="steps = 0", init=OPTIMIZER, name="model", derived=BEFORE)
    lines = converted(tmp_path, text.replace("\nFitting().fit", "\nfor kind in Fitting, Wide:\n    kind().fit"))
    assert lines.count("self.model = rd.distribute_model(self.model)") == 2

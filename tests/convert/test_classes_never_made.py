"""A class that nothing which runs names has no objects: its methods are not part of the training."""

from __future__ import annotations

from pathlib import Path

import pytest
from conversion import conversion, converted

TRAINERS = """\
import accelerate
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model):
        self.model = model
        data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
        self.loader = DataLoader(data, batch_size=8, shuffle=True)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.1)

    def fit(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()
        self.finish()

    def finish(self):
        print("done")


"""
OTHER = """\
class Accelerated(Trainer):
    def fit(self):
        accelerator = accelerate.Accelerator()
        model, optimizer, loader = accelerator.prepare(self.model, self.optimizer, self.loader)
        for x, y in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
        self.finish()


class LongAccelerated(Accelerated):
    pass
"""
START = "\nfrom trainers import Accelerated, Trainer\n\nTrainer(nn.Linear(4, 1)).fit()\n"
SCRIPT = "from torch import nn\n" + START


def test_another_trainer_of_the_file_is_not_run(tmp_path: Path) -> None:
    result = conversion(tmp_path, SCRIPT, trainers=TRAINERS + OTHER)
    assert not result.refusals
    (text,) = (file.text for file in result.files if file.path.name == "trainers.py")
    assert text.count("rd.distribute_loader(") == text.count("rd.scaled_lr(") == 1
    assert text.endswith(OTHER)


UNUSED = """\
class Finetuner(Trainer):
    def finish(self):
        for x, y in self.batches():
            self.optimizer.zero_grad()
            nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


class Pretrainer(Trainer):
    pass
"""


def test_a_method_that_only_another_class_overrides_is_not_run(tmp_path: Path) -> None:
    start = "from torch import nn\nfrom trainers import Pretrainer\n\nPretrainer(nn.Linear(4, 1)).fit()\n"
    result = conversion(tmp_path, start, trainers=TRAINERS + UNUSED)
    assert not result.refusals
    assert any(UNUSED in file.text for file in result.files)


def test_a_wrapper_that_is_only_imported(tmp_path: Path) -> None:
    wrapper = """\
from torch.nn.parallel import DataParallel
from torch.nn.parallel.parallel_apply import parallel_apply


class Balanced(DataParallel):
    def forward(self, *inputs, **options):
        return self.gather(self.parallel_apply(inputs), 0)

    def parallel_apply(self, inputs):
        return parallel_apply(self.replicate(self.module, self.device_ids), inputs)
"""
    lines = converted(
        tmp_path,
        TRAINERS + "from wrapper import Balanced\n\nmodel = nn.Linear(4, 1)\nmodel.forward\nTrainer(model).fit()\n",
        wrapper=wrapper,
    )
    assert "self.loader = rd.distribute_loader(self.loader)" in lines


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("Accelerated(nn.Linear(4, 1)).fit()", id="called"),
        pytest.param("LongAccelerated(nn.Linear(4, 1)).fit()", id="derived"),
        pytest.param("{'sgd': Trainer, 'fast': Accelerated}[kind](nn.Linear(4, 1)).fit()", id="table"),
        pytest.param("globals()[kind](nn.Linear(4, 1)).fit()", id="globals"),
        pytest.param("eval(kind)(nn.Linear(4, 1)).fit()", id="eval"),
        pytest.param("getattr(trainers, kind)(nn.Linear(4, 1)).fit()", id="getattr"),
        pytest.param("trainers.__dict__[kind](nn.Linear(4, 1)).fit()", id="dictionary of a module"),
        pytest.param("vars(trainers)[kind](nn.Linear(4, 1)).fit()", id="vars"),
        pytest.param("[c for c in Trainer.__subclasses__() if c.__name__ == kind][0](nn.Linear(4, 1)).fit()", id="sub"),
        pytest.param("getattr(sys.modules['trainers'], kind)(nn.Linear(4, 1)).fit()", id="modules"),
        pytest.param("importlib.import_module(where).Accelerated(nn.Linear(4, 1)).fit()", id="imported"),
        pytest.param("hydra.utils.instantiate(settings).fit()", id="instantiated"),
        pytest.param(
            "KINDS = (Trainer, Accelerated)\ntrainer = KINDS[int(kind)](nn.Linear(4, 1))\n"
            "print(isinstance(trainer, KINDS))\ntrainer.fit()",
            id="tuple that a test reads, too",
        ),
    ],
)
def test_a_class_that_may_be_made_counts(tmp_path: Path, start: str) -> None:
    head = "import importlib, sys\nimport hydra\nimport trainers\nfrom torch import nn\nfrom trainers import *\n\n"
    result = conversion(tmp_path, f"{head}kind, where = sys.argv[1:]\n{start}\n", trainers=TRAINERS + OTHER)
    assert "framework" in {finding.kind for finding in result.refusals}


@pytest.mark.parametrize(
    ("before", "first"),
    [
        pytest.param(
            "TABLE = {}\n\n\ndef register(kind):\n    TABLE[kind.__name__] = kind\n    return kind\n", "", id="registry"
        ),
        pytest.param("", "", id="base that notes its classes"),
    ],
)
def test_a_class_that_makes_itself_known_counts(tmp_path: Path, before: str, first: str) -> None:
    trainers = before + TRAINERS + OTHER
    if before:
        trainers = trainers.replace("class Accelerated", "@register\nclass Accelerated")
        table = "trainers.TABLE"
    else:
        note = "    kinds = {}\n\n    def __init_subclass__(cls):\n        Trainer.kinds[cls.__name__] = cls\n\n"
        trainers = trainers.replace("class Trainer:\n", "class Trainer:\n" + note)
        table = "trainers.Trainer.kinds"
    script = f"import sys\n\nimport trainers\nfrom torch import nn\n\n{table}[sys.argv[1]](nn.Linear(4, 1)).fit()\n"
    result = conversion(tmp_path, script, trainers=trainers)
    assert "framework" in {finding.kind for finding in result.refusals}


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param("is_fast = isinstance(trainer, Accelerated)", id="isinstance"),
        pytest.param("is_fast = isinstance(trainer, (list, Accelerated))", id="one of several"),
        pytest.param("is_fast = issubclass(Trainer, Accelerated | LongAccelerated)", id="union"),
        pytest.param("is_fast = type(trainer) is Accelerated or trainer.__class__ in [Accelerated]", id="type"),
        pytest.param("KINDS = (Accelerated, LongAccelerated)\nis_fast = isinstance(trainer, KINDS)", id="tuple"),
        pytest.param("import trainers\nis_fast = isinstance(trainer, trainers.Accelerated)", id="attribute"),
    ],
)
def test_a_class_that_a_test_asks_for_is_not_made(tmp_path: Path, asked: str) -> None:
    head = "from torch import nn\nfrom trainers import *\n\n"
    start = f"{head}trainer = Trainer(nn.Linear(4, 1))\n{asked}\ntrainer.fit()\n"
    assert not conversion(tmp_path, start, trainers=TRAINERS + OTHER).refusals


def test_a_class_of_a_tuple_that_has_another_name_where_it_is_read_counts(tmp_path: Path) -> None:
    start = "import sys\nfrom torch import nn\nfrom trainers import KINDS as kinds\n\n"
    start += "kinds[int(sys.argv[1])](nn.Linear(4, 1)).fit()\n"
    result = conversion(tmp_path, start, trainers=f"{TRAINERS}{OTHER}\n\nKINDS = (Trainer, Accelerated)\n")
    assert "framework" in {finding.kind for finding in result.refusals}


@pytest.mark.parametrize("start", ["main()", "if __name__ == '__main__':\n    main()"])
def test_a_script_that_runs_a_function_may_make_a_class_that_nothing_names(tmp_path: Path, start: str) -> None:
    run = "import sys\n\n\ndef main():\n    globals()[sys.argv[1]](nn.Linear(4, 1)).fit()\n\n\n"
    refusals = conversion(tmp_path, f"{TRAINERS}{run}{start}\n").refusals
    assert "no-training" not in {finding.kind for finding in refusals}

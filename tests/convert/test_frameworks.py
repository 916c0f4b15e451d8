"""A script that is distributed already, by a framework or by hand, is recognised and not told to wrap again."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

from retrofit.cli import main

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
IMPORT

def main():
    torch.manual_seed(0)
    loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    PREPARE
    for epoch in range(2):
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            BACKWARD
            optimizer.step()


main()
"""
# The import, what is called before the training, the backward pass, and how the script is to be started.
FRAMEWORKS = {
    "Accelerate": (
        "from accelerate import Accelerator", "acc = Accelerator()\n    model, loader = acc.prepare(model, loader)",
        "acc.backward(loss)", "accelerate launch --num_processes=N",
    ),
    "Fabric": (
        "import lightning as L", "fabric = L.Fabric(devices=2)\n    model, optimizer = fabric.setup(model, optimizer)",
        "fabric.backward(loss)", "fabric run --devices=N",
    ),
    "DeepSpeed": (
        "import deepspeed", "model, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer)",
        "model.backward(loss)", "deepspeed --num_gpus=N",
    ),
    "Ray Train": (
        "import ray.train.torch", "model = ray.train.torch.prepare_model(model)", "loss.backward()",
        "ScalingConfig(num_workers=N)",
    ),
    "Horovod": (
        "import horovod.torch as hvd", "hvd.init()\n    optimizer = hvd.DistributedOptimizer(optimizer)",
        "loss.backward()", "horovodrun -np N",
    ),
    "Colossal-AI": (
        "from colossalai.booster import Booster", "model, optimizer, *_ = Booster().boost(model, optimizer)",
        "loss.backward()", "colossalai run --nproc_per_node=N",
    ),
}  # fmt: skip
SHARDING = {
    "FSDP": ("from torch.distributed.fsdp import FullyShardedDataParallel as FSDP", "model = FSDP(model)"),
    "FSDP2": (
        "from torch.distributed.fsdp import fully_shard",
        "for layer in model.children():\n        fully_shard(layer)",
    ),
    "fairscale": ("from fairscale.nn import FullyShardedDataParallel", "model = FullyShardedDataParallel(model)"),
}
TRAINERS = {
    "Lightning": ("import pytorch_lightning as pl", "pl.Trainer(max_epochs=2).fit(None)", "Trainer(devices=N)"),
    "Composer": ("from composer import Trainer", "Trainer(model=None).fit()", "composer -n N"),
    "the Trainer of transformers": ("from transformers import Trainer", "Trainer(model=None).train()", "torchrun"),
}
JOINED = """\
    torch.distributed.init_process_group("gloo")
    loader = DataLoader(loader.dataset, 4, sampler=torch.utils.data.DistributedSampler(loader.dataset))
"""


def script(folder: Path, imported: str = "", prepare: str = "pass", backward: str = "loss.backward()") -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("IMPORT", imported).replace("PREPARE", prepare).replace("BACKWARD", backward))
    return str(path)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_named_with_its_start(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported, prepare, backward, start = FRAMEWORKS[name]
    path = script(tmp_path, imported, prepare, backward)
    assert main(["check", path]) == 0
    note = capsys.readouterr().err
    assert f"it is distributed already by {name}: start it with `" in note and start in note and "train.py" in note
    assert main(["convert", path]) == 1
    assert f"it is distributed already by {name}: start it with `" in capsys.readouterr().err


@pytest.mark.parametrize("name", TRAINERS)
def test_a_framework_that_owns_the_loop_is_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imported, call, start = TRAINERS[name]
    (tmp_path / "train.py").write_text(f"{imported}\n\n{call}\n")
    assert main(["check", str(tmp_path / "train.py")]) == 0 and main(["convert", str(tmp_path / "train.py")]) == 1
    message = capsys.readouterr().err
    assert message.count(f"it is distributed already by {name}: ") == 2 and start in message


@pytest.mark.parametrize("name", SHARDING)
def test_sharded_models_are_wrapped(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported, prepare = SHARDING[name]
    path = script(tmp_path, imported, f"{JOINED.strip()}\n    {prepare}")
    main(["check", path])
    shown = capsys.readouterr()
    assert f"already by {name}: start it with `torchrun" in shown.err
    assert not {"RF209", "RF605", "RF103"} & {word for word in shown.out.split() if word.startswith("RF")}
    assert main(["convert", path]) == 1


BY_HAND = {
    "each": "loss.backward()\n            for p in model.parameters():\n"
    "                torch.distributed.all_reduce(p.grad)",
    "bucket": "loss.backward()\n            flat = torch.cat([p.grad.flatten() for p in model.parameters()])\n"
    "            torch.distributed.all_reduce(flat)",
}


@pytest.mark.parametrize("name", BY_HAND)
def test_gradients_averaged_by_hand(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", script(tmp_path, "", JOINED.strip(), BY_HAND[name])])
    assert "RF209" not in capsys.readouterr().out
    main(["check", script(tmp_path, "", JOINED.strip())])
    assert "RF209" in capsys.readouterr().out


LAYER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Codes(nn.Linear):
    def step(self):
        for p in self.parameters():
            torch.distributed.all_reduce(p.grad)

    def forward(self, x):
        if self.training and torch.distributed.is_initialized():
            self.step()
        return super().forward(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.codes, self.head = Codes(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.codes(x))


loader = DataLoader(TensorDataset(torch.randn(16, 4)), 4, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).mean().backward()
    optimizer.step()
"""


def test_a_layer_that_adds_up_gradients_has_its_own_alone(tmp_path: Path) -> None:
    assert "model = rd.distribute_model(model)" in converted(tmp_path, LAYER)


def test_the_model_inside_the_wrapper_gets_its_own_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrap = "model = nn.parallel.DistributedDataParallel(model)\n    raw_model = model.module\n    print(raw_model)"
    main(["check", script(tmp_path, "", f"{JOINED.strip()}\n    {wrap}")])
    assert "RF209" not in (out := capsys.readouterr().out) and "RF605" not in out


@pytest.mark.parametrize(
    ("imported", "prepare"),
    [
        ("import accelerate\nimport deepspeed\nfrom lightning import Fabric", "pass"),
        ("try:\n    import deepspeed\nexcept ImportError:\n    deepspeed = None", "pass"),
        ("from accelerate import Accelerator", "Accelerator().print('a tool for messages')"),
        ("import deepspeed\n\n\ndef unused(model):\n    return deepspeed.initialize(model=model)", "pass"),
    ],
)
def test_an_unused_framework_import_does_not_refuse_the_script(imported: str, prepare: str, tmp_path: Path) -> None:
    path = script(tmp_path, imported, prepare)
    assert main(["check", path]) == 1 and main(["convert", path]) == 0

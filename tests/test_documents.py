"""The commands and calls of the guides in docs/documents.md, run as they stand there: on the CPU, in two processes."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from guide_commands import ROOT, STARTS, run, with_two_processes
from torch import nn

sys.path.insert(0, str(ROOT / "docs"))
from make_documents import DOCUMENTS, DOCUMENTS_TEST, PAGE, TASKS_TEST, page

sys.path.remove(str(ROOT / "docs"))

pytestmark = pytest.mark.usefixtures("forked_python")
SIZES = ("--crop_size", "32", "--batchsize", "8", "--workers", "0", "--dry_run")


def dry_run(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a training command for one step and check that two processes took part in it, under its strategy."""
    ended = run(line, "--layers", "18", *SIZES, "--logdir", str(folder / "log"), **variables)
    strategy = "fsdp" if "--strategy fsdp" in line else "ddp"
    assert f"2 process(es), {strategy}, global batch 16" in ended.stdout
    assert not (folder / "log").exists()
    return ended


NEEDS_FSDP2 = pytest.mark.skipif(
    not hasattr(importlib.import_module("torch.distributed.fsdp"), "fully_shard"),
    reason=f"fully_shard needs torch 2.6, this is {torch.__version__}",
)


# ---- the table -------------------------------------------------------------------------------------------------


def test_the_page_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/make_documents.py"


ROWS = [(title, *row) for title, rows in DOCUMENTS.items() for row in rows]


def test_every_test_of_the_table_exists() -> None:
    functions: dict[str, set[str]] = {}
    for _, line, _, test in ROWS:
        if not test.startswith("tests/"):
            assert len(test) > 10, f"{line}: say why there is no test"
            continue  # none, or one that is to come
        file, _, name = test.partition("::")
        if file not in functions:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert name in functions[file], f"{line}: no {test}"


def test_the_lines_run_here_are_those_of_the_table() -> None:
    """A call stands in this file as it is; a command is part of one that is started, its words in their order."""
    source = Path(__file__).read_text(encoding="utf-8")
    here = (f"{DOCUMENTS_TEST}::", f"{TASKS_TEST}::")
    held = [ours or line for _, line, ours, test in ROWS if test.startswith(here)]
    assert len(held) > 40
    started = [shlex.split(with_two_processes(command)) for command in STARTS.values()]
    missing = [
        line
        for line in held
        if line not in source and not any(is_part(shlex.split(with_two_processes(line)), of) for of in started)
    ]
    assert missing == []


def is_part(words: list[str], of: list[str]) -> bool:
    rest = iter(of)
    return all(word in rest for word in words)


# ---- commands --------------------------------------------------------------------------------------------------


def test_several_nodes_with_torchrun(tmp_path: Path) -> None:
    ended = dry_run(STARTS["torchrun"], tmp_path)
    assert re.search("│ strategy +│ ddp ", ended.stdout)


@NEEDS_FSDP2
def test_the_old_launcher(tmp_path: Path) -> None:
    ended = dry_run(STARTS["launch"], tmp_path)
    assert re.search("│ strategy +│ fsdp ", ended.stdout)


@pytest.mark.parametrize(
    "start",
    [
        pytest.param("use_env", marks=pytest.mark.slow),
        pytest.param("fsdp", marks=[NEEDS_FSDP2, pytest.mark.slow]),
        pytest.param("fsdp.sh", marks=[NEEDS_FSDP2, pytest.mark.slow]),
        "ddp.sh",
    ],
)
def test_one_node(start: str, tmp_path: Path) -> None:
    ended = dry_run(STARTS[start], tmp_path)
    assert ("│ strategy" in ended.stdout) is ("fsdp" in start)


def test_one_process(tmp_path: Path) -> None:
    assert (
        "1 process(es), single, global batch 8" in run(STARTS["one"], *SIZES, "--logdir", str(tmp_path / "log")).stdout
    )


# ---- calls -----------------------------------------------------------------------------------------------------


def test_imports(capsys: pytest.CaptureFixture[str]) -> None:
    for line in (
        "from retrofit.distributed import setup_distributed, cleanup_distributed, DDPWrapper",
        "from retrofit.distributed import FSDPWrapper",
        'python -c "import torch; print(torch.__version__)"',
    ):
        exec(shlex.split(line)[2] if line.startswith("python -c") else line, {})
    assert capsys.readouterr().out == f"{torch.__version__}\n"


def test_gpustat_is_installed() -> None:
    import gpustat

    assert gpustat.__version__
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(r'^reference = \[[^]]*"gpustat', project, re.MULTILINE), "a dependency of this project"


EXAMPLE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from retrofit.distributed import *
from retrofit.distributed.collectives import gather_objects


class MyModel(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


class MyDataset(Dataset):
    def __len__(self):
        return 128

    def __getitem__(self, index):
        seen.append(index)
        return torch.randn(4, generator=torch.Generator().manual_seed(index)), index % 3


seen = []
epochs = 2
criterion = nn.CrossEntropyLoss()


def same_everywhere(model):
    weights = torch.cat([parameter.flatten() for parameter in model.parameters()]).tolist()
    assert all(other == weights for other in gather_objects(weights))
    return weights


# ---- the complete example of the DDP and FSDP guide
rank, local_rank, world_size = setup_distributed()
device = get_device()

model = MyModel().to(device)
model = DDPWrapper(model)

dataset = MyDataset()
sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
dataloader = DataLoader(dataset, batch_size=32, sampler=sampler)

optimizer = torch.optim.Adam(model.parameters())
for epoch in range(epochs):
    sampler.set_epoch(epoch)
    for data, target in dataloader:
        data, target = data.to(device), target.to(device)
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
    save_checkpoint(model, optimizer, epoch, "checkpoint.pt")

orders = gather_objects(seen)
assert sorted(orders[0][:64] + orders[1][:64]) == list(range(128)) and orders[0][:64] != orders[0][64:]
weights = same_everywhere(model)

# ---- its other calls
if is_main_process():
    print("I am rank 0")
rank = get_rank()
world_size = get_world_size()
barrier()
metrics = {"loss": torch.tensor(0.5), "acc": torch.tensor(0.9)}
avg_metrics = reduce_dict(metrics)
assert avg_metrics == metrics
assert reduce_dict({"loss": torch.tensor(float(rank))}) == {"loss": torch.tensor(0.5)}
model = DDPWrapper(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)))
optimizer = torch.optim.Adam(model.parameters())
checkpoint = load_checkpoint(model, optimizer, "checkpoint.pt")
assert checkpoint["epoch"] == 1 and same_everywhere(model) == weights


# ---- the example of the guide to parallel strategies
def train_ddp():
    model = distribute_model(MyModel().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    train_loader = DataLoader(dataset, batch_size=32, sampler=DistributedSampler(dataset))
    for epoch in range(2):
        train_loader.sampler.set_epoch(epoch)
        for inputs, labels in train_loader:
            outputs = model(inputs.to(device))
            loss = criterion(outputs, labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print_main(f"Epoch {epoch}, Loss: {loss.item():.4f}")
    same_everywhere(model)


train_ddp()
cleanup_distributed()
"""


def test_the_complete_ddp_example(tmp_path: Path) -> None:
    (tmp_path / "SCRIPT").write_text(EXAMPLE)
    ended = run(STARTS["script"], cwd=tmp_path, PYTHONPATH=str(ROOT))
    assert ended.stdout.count("I am rank 0") == 1
    assert re.findall(r"Epoch (\d), Loss: \d\.\d{4}", ended.stdout) == ["0", "1"]
    content = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert list(content["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]


class BertIntermediate(nn.Sequential):
    """What a guide calls a layer, small."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 4), nn.GELU())


class BertLayer(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(BertIntermediate(), nn.Linear(4, 4))


def new_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(BertLayer(), BertLayer(), nn.Linear(4, 3))


def train_step(model: nn.Module, share: slice) -> Any:
    """Make two optimizer steps on a share of one batch of 8 and return the optimizer."""
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))[share]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return optimizer


def whole_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    from retrofit.distributed.checkpoint.sharded_state import gather_state

    return gather_state(dict(model.state_dict()))


def shard_and_train() -> dict[str, tuple[bool, dict[str, torch.Tensor]]]:
    """Train under every strategy and return whether parameters were sharded, and the weights."""
    from retrofit.distributed import FSDPWrapper, get_rank
    from retrofit.distributed.strategies import is_sharded

    share = slice(4 * get_rank(), 4 * get_rank() + 4)
    found = {}
    for name, wrap in {
        "FULL_SHARD": lambda model: FSDPWrapper(model, sharding_strategy="FULL_SHARD", min_num_params=1e6),
        "small": lambda model: FSDPWrapper(model, sharding_strategy="FULL_SHARD", min_num_params=10),
        "SHARD_GRAD_OP": lambda model: FSDPWrapper(model, sharding_strategy="SHARD_GRAD_OP", min_num_params=1e6),
        "NO_SHARD": lambda model: FSDPWrapper(model, sharding_strategy="NO_SHARD"),
        "HYBRID_SHARD": lambda model: FSDPWrapper(model, sharding_strategy="HYBRID_SHARD", shard_size=2),
    }.items():
        model = wrap(new_model())
        train_step(model, share)
        found[name] = (is_sharded(model), whole_weights(model))
    return found


@NEEDS_FSDP2
def test_sharding_strategies(ranks: Any) -> None:
    alone = new_model()
    train_step(alone, slice(0, 8))
    for found in ranks(2).run(shard_and_train):
        for name, (is_sharded, weights) in found.items():
            assert is_sharded is (name != "NO_SHARD")
            torch.testing.assert_close(weights, dict(alone.state_dict()), msg=name)


def shard_a_transformer(folder: str) -> tuple[int, bool, str]:
    from retrofit.distributed import FSDPWrapper, get_rank, load_checkpoint, save_checkpoint
    from retrofit.distributed.strategies import MixedPrecision, is_sharded

    checkpoint_path = f"{folder}/checkpoint.pt"
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    model = new_model()
    model = FSDPWrapper(model, wrap_layers={"BertLayer", "BertIntermediate"}, mixed_precision=precision)
    optimizer = train_step(model, slice(4 * get_rank(), 4 * get_rank() + 4))
    dtype = str(model(torch.ones(1, 4)).dtype)
    save_checkpoint(model, optimizer, 1, checkpoint_path)
    weights = whole_weights(model)
    model = FSDPWrapper(nn.Sequential(BertLayer(), BertLayer(), nn.Linear(4, 3)), wrap_layers=["BertLayer"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    load_checkpoint(model, optimizer, checkpoint_path)
    same = all(torch.equal(value, weights[name]) for name, value in whole_weights(model).items())
    return sum(is_sharded(part) for part in model.modules()), same, dtype


@NEEDS_FSDP2
def test_fsdp_of_a_transformer(ranks: Any, tmp_path: Path) -> None:
    assert ranks(2).run(shard_a_transformer, str(tmp_path)) == [(3, True, "torch.bfloat16")] * 2
    whole = new_model()
    whole.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["model"])  # for one process

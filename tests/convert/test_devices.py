"""Every way to name a GPU by number, and to count GPUs, ends at the process's own GPU; other values stay as they are.

There is no GPU where the tests run: the converted text is read, and two ranks run it with a torch.cuda that says it has
two GPUs.
"""

from __future__ import annotations

import ast
import json
import textwrap
from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion
from verify.projects.launch import Launcher

from retrofit.convert.plan import plan_conversion
from retrofit.rules.registry import RULES
from retrofit.training import read_project

HEAD = """\
import argparse
import json
import os
import yaml
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int, default=0)
parser.add_argument("--n_gpu", type=int, default=1)
parser.add_argument("--gpu_ids", default="0")
parser.add_argument("--device", default="cpu")
parser.add_argument("--batch_size", type=int, default=4)
parser.add_argument("--lr", type=float, default=0.1)
args = parser.parse_args()
torch.manual_seed(0)
"""
TRAIN = """\
loader = DataLoader(TensorDataset(torch.randn(16, 3)), BATCH, shuffle=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=RATE)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
# What a script says, and what it says when it is converted (None: one device in it is the own one).
DEVICES = [
    ('device = torch.device("cuda:0")', 'device = torch.device("cuda")'),
    ('device = torch.device("cuda:1")', 'device = torch.device(rd.devices.own_device("cuda:1"))'),
    (
        'd = torch.device("cuda:{}".format(args.gpu))',
        'd = torch.device(rd.devices.own_device("cuda:{}".format(args.gpu)))',
    ),
    ('d = torch.device(f"cuda:{args.gpu}")', 'd = torch.device(rd.devices.own_device(f"cuda:{args.gpu}"))'),
    ('d = torch.device("cuda:" + str(args.gpu))', 'd = torch.device(rd.devices.own_device("cuda:" + str(args.gpu)))'),
    ('d = torch.device("cuda:%d" % args.gpu)', 'd = torch.device(rd.devices.own_device("cuda:%d" % args.gpu))'),
    ('d = ":".join(["cuda", str(args.gpu)])', 'd = rd.devices.own_device(":".join(["cuda", str(args.gpu)]))'),
    ('kind = "cuda"\nd = f"{kind}:{args.gpu}"', 'kind = "cuda"\nd = rd.devices.own_device(f"{kind}:{args.gpu}")'),
    (
        'T = "cuda:{}"\nd = torch.device(T.format(0))',
        'T = "cuda:{}"\nd = torch.device(rd.devices.own_device(T.format(0)))',
    ),
    ('d = torch.device("cuda", args.gpu)', 'd = torch.device("cuda", rd.devices.own_device(args.gpu))'),
    ('d = torch.device(type="cuda", index=0)', 'd = torch.device(type="cuda", index=rd.devices.own_device(0))'),
    ("d = torch.device(args.gpu)", "d = torch.device(rd.devices.own_device(args.gpu))"),
    ("d = torch.device(args.device)", "d = torch.device(rd.devices.own_device(args.device))"),
    ("d = args.device\nx = x.to(d)", "d = rd.devices.own_device(args.device)\nx = x.to(d)"),
    ("x = x.to(0)", "x = x.to(rd.devices.own_device(0))"),
    ("x = x.to(device=args.device)", "x = x.to(device=rd.devices.own_device(args.device))"),
    ("x = x.cuda(args.gpu, non_blocking=True)", "x = x.cuda(rd.devices.own_device(args.gpu), non_blocking=True)"),
    ("x = x.cuda(device=0)", "x = x.cuda(device=rd.devices.own_device(0))"),
    ("gpu = int(args.gpu)\nx = x.cuda(gpu)", "gpu = int(args.gpu)\nx = x.cuda(rd.devices.own_device(gpu))"),
    (
        'ids = [int(i) for i in args.gpu_ids.split(",")]\nx = x.cuda(ids[0])',
        'ids = [int(i) for i in args.gpu_ids.split(",")]\nx = x.cuda(rd.devices.own_device(ids[0]))',
    ),
    ("torch.cuda.set_device(args.gpu)", "torch.cuda.set_device(rd.devices.own_device(args.gpu))"),
    (
        "with torch.cuda.device(0):\n    x = x.cuda()",
        "with torch.cuda.device(rd.devices.own_device(0)):\n    x = x.cuda()",
    ),
    ('x = torch.zeros(2, device="cuda:0")', 'x = torch.zeros(2, device="cuda")'),
    ("x = torch.zeros(2, device=args.device)", "x = torch.zeros(2, device=rd.devices.own_device(args.device))"),
    ("x = torch.zeros(2, device=0)", "x = torch.zeros(2, device=rd.devices.own_device(0))"),
    ('s = torch.load("a.pt", map_location="cuda:0")', 's = torch.load("a.pt", map_location="cuda")'),
    (
        's = torch.load("a.pt", map_location=lambda storage, _: storage.cuda(args.gpu))',
        's = torch.load("a.pt", map_location=lambda storage, _: storage.cuda(rd.devices.own_device(args.gpu)))',
    ),
    ('c = yaml.safe_load(open("c.yml"))\nx = x.to(c["device"])', None),
    ('x = x.to(args.device if torch.cuda.is_available() else "cpu")', None),
    ('args.device = torch.cuda.is_available() and "cuda:%d" % args.gpu or "cpu"\nx = x.to(args.device)', None),
    ("class Trainer:\n    def __init__(self):\n        self.device = args.device\n"
     "    def put(self, t):\n        return t.to(self.device)\nx = Trainer().put(x)", None),
]  # fmt: skip
# (batch size, learning rate, lines before them) -> what is left to every process
COUNTS = [
    (
        "args.batch_size * torch.cuda.device_count()",
        "args.batch_size * rd.devices.own_gpu_count(torch.cuda.device_count())",
    ),
    ("args.batch_size * max(1, args.n_gpu)", "args.batch_size * rd.devices.own_gpu_count(max(1, args.n_gpu))"),
    ('args.batch_size * len(args.gpu_ids.split(","))',
     'args.batch_size * rd.devices.own_gpu_count(len(args.gpu_ids.split(",")))'),
]  # fmt: skip


def changed(folder: Path, lines: str, batch: str = "args.batch_size", rate: str = "args.lr") -> tuple[str, str]:
    """Return the script before and after the conversion; the converted one has nothing left to change."""
    before = HEAD + "x = torch.randn(2, 3)\n" + TRAIN.replace("BATCH", batch).replace("RATE", rate) + lines + "\n"
    result = conversion(folder, before)
    assert not result.refusals
    after = result.files[0].text
    ast.parse(after)
    (folder / "train.py").write_text(after)
    again = read_project(folder / "train.py")
    assert [f for code in ("RF604", "RF606", "RF608") for f in RULES[code].find(again)] == [], "the change ends it"
    return before, after


@pytest.mark.parametrize(("lines", "expected"), DEVICES)
def test_a_gpu_named_in_the_script_becomes_the_one_of_the_process(
    lines: str, expected: str | None, tmp_path: Path
) -> None:
    _, after = changed(tmp_path, lines)
    if expected is None:
        assert after.count("rd.devices.own_device(") == 1, after
    else:
        assert expected in after


@pytest.mark.parametrize(("batch", "expected"), COUNTS)
def test_a_batch_size_for_all_gpus_becomes_that_of_one(batch: str, expected: str, tmp_path: Path) -> None:
    assert expected in changed(tmp_path, "", batch)[1]


def test_a_model_in_data_parallel_moves_to_the_gpu_of_the_process_and_the_device_list_stays(tmp_path: Path) -> None:
    wrapped = "model = nn.DataParallel(nn.Linear(3, 1).cuda(0), device_ids=[0, 1]).to(f'cuda:{args.gpu}')"
    text = HEAD + TRAIN.replace("BATCH", "4").replace("RATE", "0.1").replace("model = nn.Linear(3, 1)", wrapped)
    result = conversion(tmp_path, text)
    wrapper = (
        "rd.model.data_parallel(nn.DataParallel, nn.Linear(3, 1).cuda(rd.devices.own_device(0)), device_ids=[0, 1])"
    )
    expected = f"model = {wrapper}.to(rd.devices.own_device(f'cuda:{{args.gpu}}'))"
    assert expected in result.files[0].text and not result.refusals


def test_a_number_of_gpus_counts_as_one_in_rates_workers_and_in_place_sums(tmp_path: Path) -> None:
    lines = """\
    n_gpu = torch.cuda.device_count()
    args.batch_size *= n_gpu
    workers = 4 * n_gpu
    other = DataLoader(loader.dataset, args.batch_size, num_workers=torch.cuda.device_count())
    if torch.cuda.device_count() > 1:
        print("a batch of", args.batch_size * n_gpu)
    """
    _, after = changed(tmp_path, textwrap.dedent(lines), rate="args.n_gpu * args.lr")
    assert "lr=rd.scaled_lr(rd.devices.own_gpu_count(args.n_gpu) * args.lr))" in after
    assert (
        "args.batch_size *= rd.devices.own_gpu_count(n_gpu)" in after and "4 * rd.devices.own_gpu_count(n_gpu)" in after
    )
    assert "num_workers=rd.devices.own_gpu_count(torch.cuda.device_count())" in after
    assert "if torch.cuda.device_count() > 1:" in after and "args.batch_size * n_gpu)" in after


VISIBLE = [
    ('os.environ["CUDA_VISIBLE_DEVICES"] = CHOICE', "import os\nimport torch\n"),
    ('os.environ["CUDA_VISIBLE_DEVICES"] = CHOICE', "import os\n"),
    ('os.environ.setdefault("CUDA_VISIBLE_DEVICES", CHOICE)', "import os\n"),
    ('environ.update({"CUDA_VISIBLE_DEVICES": CHOICE, "A": "b"})', "from os import environ\n"),
    ('os.environ.update(A="b", CUDA_VISIBLE_DEVICES=CHOICE)', "import os\n"),
    ("os.environ[KEY] = CHOICE", 'import os\nKEY = "CUDA_VISIBLE_DEVICES"\n'),
    ('os.environ |= {"CUDA_VISIBLE_DEVICES": CHOICE}', "import os\n"),
    ('os.putenv("CUDA_VISIBLE_DEVICES", CHOICE)', "import os\n"),
]


@pytest.mark.parametrize(("setting", "before"), VISIBLE)
def test_a_script_that_hides_gpus_leaves_them_visible_to_several_processes(
    setting: str, before: str, tmp_path: Path
) -> None:
    training = textwrap.indent(TRAIN.replace("BATCH", "4").replace("RATE", "0.1"), "    ")
    script = f"{before}{setting}\n{HEAD}\n\ndef main():\n{training}\n\nmain()\n".replace("CHOICE", '"1"')
    result = conversion(tmp_path, script)
    text = result.files[0].text
    assert setting.replace("CHOICE", 'rd.devices.visible_gpus("1")') in text and not result.refusals
    assert text.index("import multigpu as rd") < text.index("rd.devices.visible_gpus") < text.index("rd.setup")


FAKE = """\
import json
import os
import torch

asked = []  # of a torch.cuda that says it has two GPUs; nothing is computed there
torch.cuda.device_count = lambda: 2
torch.cuda.set_device = lambda device: asked.append(str(device))
plain_to = torch.Tensor.to
torch.Tensor.to = lambda tensor, device: asked.append(str(device)) or plain_to(tensor, "cpu")
torch.Tensor.cuda = lambda tensor, device=None: asked.append(str(device)) or tensor


def show(**figures):
    with open(f"asked{os.environ.get('RANK', '')}.json", "w") as file:
        json.dump({"devices": asked, **figures}, file)
"""
ASKING = """\
import fake
x.to("cuda:0")
x.to(f"cuda:{args.gpu}")
x.to(torch.device("cuda:{}".format(args.gpu)))
x.cuda(args.gpu)
torch.cuda.set_device("cuda:%d" % args.gpu)
torch.cuda.set_device(torch.device("cuda", args.gpu))
if args.device != "cpu":
    x.to(args.device)
batches = [len(samples) for (samples,) in loader]
fake.show(batches=batches, workers=2 * torch.cuda.device_count())
"""


def test_each_of_two_ranks_takes_its_own_gpu_and_one_process_the_chosen_one(launcher: Launcher, tmp_path: Path) -> None:
    for name, text in (("fake.py", FAKE), ("train.py", HEAD + "x = torch.randn(2, 3)\n")):
        (tmp_path / name).write_text(text)
    batch = "args.batch_size * max(1, args.n_gpu)"
    script = (tmp_path / "train.py").read_text() + TRAIN.replace("BATCH", batch).replace("RATE", "args.lr") + ASKING
    (tmp_path / "train.py").write_text(script)
    arguments = ["--gpu", "1", "--n_gpu", "2", "--device", "cuda:1"]
    assert launcher.run(tmp_path, "train.py", arguments)["statuses"] == [0]
    before = json.loads((tmp_path / "asked.json").read_text())
    (tmp_path / "train.py").write_text(plan_conversion(read_project(tmp_path / "train.py")).files[0].text)
    add_runtime(tmp_path)
    assert launcher.run(tmp_path, "train.py", arguments)["statuses"] == [0]
    alone = json.loads((tmp_path / "asked.json").read_text())
    assert alone == before, "one process is the same program"
    result = launcher.run(tmp_path, "train.py", arguments, world_size=2)
    assert result["statuses"] == [0, 0], result["outputs"]
    for rank in (0, 1):
        asked = json.loads((tmp_path / f"asked{rank}.json").read_text())
        own = f"cuda:{rank}"
        devices = [device for device in asked["devices"] if device != "cpu"]  # where collectives are
        assert devices == [own, own, own, str(rank), own, own, own]
        assert (asked["batches"], asked["workers"]) == ([4] * 4, 2), "all 16 samples on each rank"
    assert before["batches"] == [8, 8] and before["workers"] == 4


READING = [
    "torch.cuda.set_device(args.device)",
    'torch.cuda.set_device(int(args.device.split(":")[1]))',
    "torch.cuda.set_device(int(args.device[5]))",
    "number = torch.device(args.device).index",
    "print(args.device[-1])",
]


@pytest.mark.parametrize("reading", READING)
def test_a_device_whose_number_is_read_keeps_a_number(tmp_path: Path, reading: str) -> None:
    head = HEAD.replace('default="cpu"', "default=DEVICE").replace("parser =", 'DEVICE = "cuda:0"\nparser =', 1)
    train = TRAIN.replace("BATCH", "8").replace("RATE", "0.1")
    result = conversion(tmp_path, f"{head}if torch.cuda.is_available():\n    {reading}\n{train}")
    text = result.files[0].text
    assert 'DEVICE = rd.devices.own_device("cuda:0")' in text and not result.refusals
    result = conversion(tmp_path, f"{head}{train}")
    assert 'DEVICE = "cuda"\n' in result.files[0].text


def test_an_option_whose_number_is_read_is_shown_as_it_is(tmp_path: Path) -> None:
    head = HEAD.replace('default="cpu"', 'default="cuda:0"')
    train = TRAIN.replace("BATCH", "8").replace("RATE", "0.1")
    text = conversion(tmp_path, f"{head}torch.cuda.set_device(args.device)\n{train}").files[0].text
    assert 'default="cuda:0"' in text and "torch.cuda.set_device(rd.devices.own_device(args.device))" in text

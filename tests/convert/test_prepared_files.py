"""Files that processes share: prepared by one of them first, waited for by the others, or each one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import converted

HEAD = """\
import csv, glob, io, json, logging, os, shutil, tempfile, urllib.request
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""
TRAIN = """\
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4, shuffle=True):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
FIRST = "with rd.output.main_process_first():"


@pytest.mark.parametrize(
    "lines",
    [
        "from torchvision.datasets import MNIST\nis_new = not os.path.exists('d')\nMNIST('d', download=is_new)\n",
        "from torch_geometric.datasets import TUDataset\nTUDataset('data', 'MUTAG')\n",
        "from ogb.nodeproppred import PygNodePropPredDataset\nPygNodePropPredDataset(name='a')\n",
        "from sklearn.datasets import fetch_california_housing\nfetch_california_housing()\n",
        "import nltk\nnltk.download('punkt')\n",
        "from torch_geometric.data import InMemoryDataset\nclass Own(InMemoryDataset):\n"
        "    def process(self):\n        torch.save(1, self.processed_paths[0])\nOwn('root')\n",
    ],
)
def test_data_that_a_library_prepares_is_prepared_by_one_process_first(lines: str, tmp_path: Path) -> None:
    text = converted(tmp_path, HEAD + lines + TRAIN)
    assert text[text.index(FIRST) + 1] == lines.splitlines()[-1]


def test_what_a_library_only_computes_is_not_run_in_turn(tmp_path: Path) -> None:
    lines = "from ogb.nodeproppred import Evaluator\nimport dgl\nEvaluator('a')\ndgl.data.utils.load_graphs('b')\n"
    lines += "from torchvision.datasets import MNIST\nMNIST('d', download=False)\n"
    assert FIRST not in converted(tmp_path, HEAD + lines + TRAIN)


def test_an_answer_from_a_function_that_asks_for_files_decides_what_is_prepared(tmp_path: Path) -> None:
    function = (
        "OUT = 'out'\n\n\ndef is_there():\n    if not os.path.exists(OUT):\n        return False\n    return True\n\n\n"
        "def prepare():\n    os.makedirs(OUT)\n    np.save(os.path.join(OUT, 'a.npy'), np.zeros(3))\n\n\n"
    )
    test = "if not is_there():\n    prepare()\nprint(np.load(os.path.join(OUT, 'a.npy')))\n"
    text = converted(tmp_path, HEAD + function + test + TRAIN)
    assert text[text.index(FIRST) + 1] == "if not is_there():"


def test_what_a_library_saves_where_it_is_missing_is_prepared(tmp_path: Path) -> None:
    lines = (
        "from tokenizers import Tokenizer\np = Path('t.json')\nif not Path.exists(p):\n    t = Tokenizer()\n"
        "    t.save(str(p))\nelse:\n    t = Tokenizer.from_file(str(p))\n"
    )
    text = converted(tmp_path, HEAD + lines + TRAIN)
    assert text[text.index(FIRST) + 1] == "if not Path.exists(p):"


def test_the_others_wait_for_a_file_that_a_library_reads(tmp_path: Path) -> None:
    lines = "from pycocotools.coco import COCO\ncoco = COCO('a.json')\njson.dump([1], open('r.json', 'w'))\n"
    text = converted(tmp_path, HEAD + TRAIN + lines + "found = coco.loadRes('r.json')\n")
    assert text[text.index("found = coco.loadRes('r.json')") - 1] == "rd.barrier()"
    text = converted(tmp_path, HEAD + TRAIN + lines + "found = coco.loadRes('other.json')\n")
    assert "rd.barrier()" not in text


def test_a_file_is_removed_when_all_have_read_it(tmp_path: Path) -> None:
    lines = (
        "urllib.request.urlretrieve('http://a', filename='a.tar')\ntext = open('a.tar').read()\nos.remove('a.tar')\n"
    )
    text = converted(tmp_path, HEAD + lines + TRAIN)
    assert text[text.index("text = open('a.tar').read()") - 1] == "rd.barrier()"
    assert text[text.index("os.remove('a.tar')") - 2] == "rd.barrier()"


def test_a_temporary_folder_is_each_process_own(tmp_path: Path) -> None:
    lines = (
        "def main(folder):\n    torch.save(1, os.path.join(folder, 'a.pt'))\n    torch.load(folder + '/a.pt')\n\n\n"
        "with tempfile.TemporaryDirectory() as d:\n    main(d)\n"
    )
    text = converted(tmp_path, HEAD + lines + TRAIN)
    assert "if rd.is_main_process():" not in text and "rd.barrier()" not in text


def test_a_question_is_asked_where_all_come_to_it(tmp_path: Path) -> None:
    lines = (
        "if os.path.exists('out'):\n    if input('remove?') != 'n':\n        shutil.rmtree('out')\nos.makedirs('out')\n"
    )
    text = converted(tmp_path, HEAD + lines + TRAIN)
    assert "if rd.output.answer_of_main(os.path.exists, 'out'):" in text


def test_a_mode_that_is_put_together_opens_for_writing(tmp_path: Path) -> None:
    lines = "flags = ''\nfile = io.open('a.csv', 'w' + flags)\nw = csv.DictWriter(file, ['a'])\nw.writeheader()\n"
    assert "file = io.open(rd.path_on_main('a.csv'), 'w' + flags)" in converted(tmp_path, HEAD + lines + TRAIN)


def test_a_handler_of_the_project_is_silent_on_the_other_ranks(tmp_path: Path) -> None:
    lines = (
        "class Bar(logging.StreamHandler):\n    def emit(self, record):\n        print(record)\n\n\n"
        "logging.getLogger().addHandler(Bar())\n"
    )
    assert "rd.output.quiet_logging()" in converted(tmp_path, HEAD + lines + TRAIN)


@pytest.mark.parametrize(
    ("line", "edited"),
    [
        ("rate = group['lr'] = 0.1 / (1 + epoch)", "rate = group['lr'] = rd.scaled_lr(0.1 / (1 + epoch))"),
        ("group['lr'], group['a'] = 0.1, 1", "group['lr'], group['a'] = rd.scaled_lr(0.1), 1"),
        ("group.update(lr=0.1)", "group.update(lr=rd.scaled_lr(0.1))"),
        ("group.update({'lr': 0.1})", "group.update({'lr': rd.scaled_lr(0.1)})"),
    ],
)
def test_a_rate_is_scaled_however_it_is_set(line: str, edited: str, tmp_path: Path) -> None:
    loop = f"for epoch in range(2):\n    for group in optimizer.param_groups:\n        {line}\n"
    assert edited in converted(tmp_path, HEAD + TRAIN.replace("for epoch in range(2):\n", loop))


def test_a_function_by_name_is_not_scaled(tmp_path: Path) -> None:
    lines = "def square(x):\n    return x * x\n\n\ncost = vars()[os.environ['COST']]\n"
    text = converted(tmp_path, HEAD + lines + TRAIN.replace("model(x).pow(2)", "cost(model(x))"))
    assert "loss = cost(model(x)).mean()" in text

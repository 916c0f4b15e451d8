"""What is made where it is missing, and read by every process, is made by rank 0 before the others look for it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

HEAD = """\
import os
import pickle
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Samples(Dataset):
    def __init__(self, root):
        self.root = root
        self.path = os.path.join(root, "samples.pt")
INIT

    def build(self):
        samples = torch.arange(32.0)[:, None]
        SAVE

    def __len__(self):
        return 32

    def __getitem__(self, index):
        ITEM


FUNCTION
dataset = Samples(".")
"""
IMPORTS = HEAD.partition("\n\n")[0] + "\n" + HEAD.split("\n\n")[1] + "\n"
TRAIN = """\
loader = DataLoader(dataset, 4, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)
for epoch in range(2):
    for x in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
print(model.weight.item())
"""
MISSING = "if not os.path.exists(self.path):\n    self.build()\nself.samples = torch.load(self.path)"
SAVE, ITEM = "torch.save(samples, self.path)", "return self.samples[index]"
SHARING = "with rd.output.main_process_first(share_draws=True):"
FIRST, MAIN = "with rd.output.main_process_first():", "rd.is_main_process()"


def script(init: str = MISSING, save: str = SAVE, item: str = ITEM, function: str = "", after: str = "") -> str:
    inner = "\n".join(f"        {line}" for line in init.splitlines())
    given = item.replace("\n", "\n        ")
    head = HEAD.replace("INIT", inner).replace("SAVE", save).replace("ITEM", given).replace("FUNCTION", function)
    return head + after + TRAIN


def test_a_cache_of_a_dataset_is_made_first_and_saved_as_before(tmp_path: Path) -> None:
    lines = converted(tmp_path, script())
    assert lines[lines.index(FIRST) + 1] == "if not os.path.exists(self.path):"
    assert lines[lines.index(SAVE) - 1] != f"if {MAIN}:", "the others find it made"


@pytest.mark.parametrize(
    ("init", "first"),
    [
        ("try:\n    self.samples = torch.load(self.path)\nexcept FileNotFoundError:\n    self.build()", "try:"),
        ("if Path(self.path).is_file() is False:\n    self.build()\nself.samples = torch.load(self.path)", "if Path"),
        ("made = os.path.isfile(self.path)\nif made:\n    0\nelse:\n    self.build()\nload(self.path)", "if made:"),
        ("for k in range(2):\n    p = f'{root}/{k}.npy'\n    if not os.path.exists(p):\n        np.save(p, k)\n"
         "    np.load(p)", "for k"),
        ("there = int(os.path.exists(self.path)) + int(os.path.exists(root))\nif there == 2:\n    0\nelse:\n"
         "    self.build()\nload(self.path)", "if there == 2:"),
        ("there = os.path.exists(self.path) + os.path.exists(root)\nif there < 2:\n    self.build()\nload(self.path)",
         "if there < 2:"),
        ("if root == 'new' or not os.path.exists(self.path):\n    make_rows(rows(root), self.path)\n"
         "load(self.path)", "if root"),
        ("if not os.path.exists(root):\n    self.build()\nfolder = os.path.join(root, 'a')\n"
         "os.listdir(folder)", "if not"),
        ("self.samples = load(self.path) if os.path.exists(self.path) else self.build()", "self.samples = load"),
        ("self.samples = self.build() if not os.path.exists(self.path) else load(self.path)", "self.samples = self"),
    ],
)  # fmt: skip
def test_every_test_for_a_missing_file_is_recognised(init: str, first: str, tmp_path: Path) -> None:
    function = (
        "load = torch.load\n\n\ndef rows(root):\n    yield 1\n\n\n"
        "def make_rows(given, path):\n    torch.save(list(given), path)\n"
    )
    lines = converted(tmp_path, script(init, function=function))
    assert lines[lines.index(FIRST) + 1].startswith(first)


def test_what_a_preparation_asks_for_is_asked_in_turn(tmp_path: Path) -> None:
    init = "if force or not is_there(root):\n    self.build()\nself.samples = torch.load(self.path)"
    function = "force = False\n\n\ndef is_there(root):\n    if not os.path.exists(root):\n        return False\n"
    function += "    return True\n"
    save = "os.makedirs(self.root)\n        torch.save(samples, self.path)"
    text = "\n".join(converted(tmp_path, script(init, save=save, function=function)))
    assert FIRST in text and "answer_of_main" not in text


@pytest.mark.parametrize("function", ["urllib.request.urlretrieve", "torch.hub.download_url_to_file"])
def test_a_file_that_is_always_fetched_is_fetched_by_one_process(function: str, tmp_path: Path) -> None:
    init = f"{function}('http://example.com/samples.pt', self.path)" + "\nself.samples = torch.load(self.path)"
    lines = converted(tmp_path, "import urllib.request\n" + script(init))
    assert lines[lines.index(init.split("\n")[0]) - 1] == f"if {MAIN}:"
    assert lines[lines.index(init.split("\n")[0]) + 1] == "rd.barrier()"


def test_a_preparation_that_returns_early_runs_on_rank_0_first(tmp_path: Path) -> None:
    function = (
        "def vocabulary(path):\n    if os.path.exists(path):\n        with open(path, 'rb') as file:\n"
        "            return pickle.load(file)\n    words = {'a': 1}\n    # keep them\n"
        "    with open(path, 'wb') as file:\n        pickle.dump(words, file)\n    return words\n\n\n"
    )
    result = conversion(tmp_path, script(function=function, after="vocabulary('words.pkl')\n"))
    assert f"@rd.output.main_process_first()\n{function}" in result.files[0].text, "it is all that the function does"
    other = function.replace("    if os", "    for k in range(2):\n        print(k)\n    if os", 1)
    text = conversion(tmp_path, script(function=other, after="vocabulary('words.pkl')\n")).files[0].text
    assert "    with rd.output.main_process_first():\n        if os.path.exists(path):\n" in text
    assert "        # keep them\n        with open(path, 'wb') as file:\n" in text and "        return words\n" in text
    drawing = function.replace("{'a': 1}", "np.random.rand(2)")
    text = conversion(tmp_path, script(function=drawing, after="vocabulary('words.pkl')\n")).files[0].text
    assert f"@{SHARING[5:-1]}\n{drawing}" in text, "the others go on with rank 0's random numbers"


@pytest.mark.parametrize("rest", ["model = Net(words)", "loader = DataLoader(Data(words))", "train(words)"])
def test_a_function_that_does_more_than_prepare_is_not_run_in_turn(rest: str, tmp_path: Path) -> None:
    function = (
        "class Net:\n    def __init__(self, words):\n        self.words = words\n\n\ndef train(words):\n    pass\n\n\n"
        "class Data:\n    def __init__(self, words):\n        self.words = words\n\n\n"
        "def run(path):\n    if not os.path.exists(path):\n        words = {'a': 1}\n"
        "        with open(path, 'wb') as file:\n            pickle.dump(words, file)\n    else:\n"
        f"        with open(path, 'rb') as file:\n            words = pickle.load(file)\n    {rest}\n\n\n"
    )
    text = conversion(tmp_path, script(function=function, after="run('words.pkl')\n")).files[0].text
    assert "@rd.output.main_process_first()" not in text, "all of them meet in what it runs"
    assert "    with rd.output.main_process_first():\n        if not os.path.exists(path):\n" in text


def test_a_statement_that_runs_only_in_rank_order_is_unchanged(tmp_path: Path) -> None:
    function = """\
def fetch(path):
    folder = path + '_raw'
    if not os.path.exists(folder):
        os.makedirs(folder)
    with open(path, 'wb') as file:
        pickle.dump({'a': 1}, file)


def fetch_another():
    fetch('another.pkl')


"""
    first = "if not os.path.exists('words.pkl'):\n    fetch('words.pkl')"
    result = conversion(tmp_path, script(function=function, after=f"{first}\nopen('words.pkl', 'rb')\n"))
    text = result.files[0].text
    assert f"{FIRST}\n{textwrap.indent(first, '    ')}\n" in text and function in text


def test_neighbouring_preparations_use_one_block(tmp_path: Path) -> None:
    after = (
        "if not os.path.exists('x.tar'):\n    os.system('wget x.tar')\n# what is in it\nif not os.path.isdir('x'):\n"
        "    tarfile.open('x.tar').extractall('x')\na = Samples('x')\n"
    )
    lines = converted(tmp_path, script("self.samples = torch.zeros(32, 1)", after=after))
    assert lines.count(FIRST) == 1 and "# what is in it" in lines


def test_random_numbers_drawn_by_one_process_are_skipped_by_the_others(tmp_path: Path) -> None:
    lines = converted(tmp_path, script(save="torch.save(samples + torch.rand(1), self.path)"))
    assert SHARING in lines and FIRST not in lines
    assert SHARING not in converted(tmp_path, script())


def test_a_file_that_an_option_rebuilds_is_written_by_one_process(tmp_path: Path) -> None:
    again = MISSING.replace("if not", "if root == 'again' or not")
    lines = converted(tmp_path, script(again))
    assert FIRST in lines and lines[lines.index(SAVE) - 1] == f"if {MAIN}:"
    other = "samples = torch.ones(32, 1)\n    torch.save(samples, self.path)"
    lines = converted(tmp_path, script(again.replace("self.build()", other)))
    assert FIRST in lines and f"{MAIN} and torch.save(samples, self.path)" in lines


@pytest.mark.parametrize(
    "after",
    [
        "if not os.path.exists('log.csv'):\n    open('log.csv', 'w').write('loss')\n",  # which nobody reads
        "if not os.path.exists('runs'):\n    os.makedirs('runs')\n",
        "if os.path.exists('last.pt'):\n    print(torch.load('last.pt'))\n",
        "if not os.path.exists('data'):\n    raise FileNotFoundError('data')\n",
        "if not os.path.exists('data'):\n    os.system('mkdir data')\n",
        "class Log:\n    def __init__(self, path):\n        if os.path.exists(path):\n"
        "            self.file = open(path, 'a')\n        else:\n            self.file = open(path, 'w')\n"
        "log = Log('log.txt')\nprint(os.path.getsize('log.txt'))\n",  # which stays open
    ],
)
def test_other_missing_file_tests_are_not_preparations(after: str, tmp_path: Path) -> None:
    assert FIRST not in converted(tmp_path, script("self.samples = torch.zeros(32, 1)", after=after))


def test_a_training_guarded_by_its_result_is_not_a_preparation(tmp_path: Path) -> None:
    head, train = script("self.samples = torch.zeros(32, 1)").split("loader =")
    train = "".join(f"    {line}\n" for line in f"loader ={train}torch.save(model.state_dict(), 'm.pt')".splitlines())
    text = f"{head}if not os.path.exists('m.pt'):\n{train}print(torch.load('m.pt'))\n"
    assert FIRST not in [line.strip() for file in conversion(tmp_path, text).files for line in file.text.splitlines()]


def test_a_cache_per_sample_is_written_by_the_rank_that_draws_the_sample(tmp_path: Path) -> None:
    item = "path = f'{self.root}/{index}.npy'\nif not os.path.exists(path):\n    np.save(path, np.ones(1, 'f'))\n"
    lines = converted(tmp_path, script("self.samples = 0", item=item + "return torch.from_numpy(np.load(path))"))
    assert FIRST not in lines and "if not os.path.exists(path):" in lines and "np.save(path, np.ones(1, 'f'))" in lines


def test_a_preparation_in_an_imported_file_is_done_by_rank_0_first(tmp_path: Path) -> None:
    data = "import os\n\nif not os.path.exists('x'):\n    os.system('wget x')\n"
    result = conversion(tmp_path, "import data\n" + script("self.samples = torch.zeros(32, 1)"), data=data)
    (finding,) = [finding for finding in result.findings if finding.place.path == "data.py"]
    assert finding.code == "RF504" and not result.refusals
    assert "with rd.output.main_process_first():" in "".join(edit.text for edit in finding.edits)


def test_no_process_reads_half_a_file(tmp_path: Path, launcher: Launcher) -> None:
    slow = (
        "data = pickle.dumps(samples)\n        with open(self.path, 'ab') as file:\n"
        "            for part in (data[:50], data[50:]):\n                file.write(part)\n"
        "                file.flush()\n                time.sleep(0.3)"
    )
    init = MISSING.replace("torch.load(self.path)", "pickle.load(open(self.path, 'rb'))")
    before = script(init, save=slow)
    (file,) = conversion(tmp_path, before).files
    (tmp_path / "after.py").write_text(file.text)
    add_runtime(tmp_path)
    alone = []
    for name in ("train.py", "after.py"):
        (tmp_path / "samples.pt").unlink(missing_ok=True)
        alone.append(launcher.run(tmp_path, name, [])["outputs"])
    assert alone[0] == alone[1] != [""]
    size = (tmp_path / "samples.pt").stat().st_size
    (tmp_path / "samples.pt").unlink()
    together = launcher.run(tmp_path, "after.py", [], world_size=2)
    assert together["statuses"] == [0, 0], together["outputs"]
    assert (tmp_path / "samples.pt").stat().st_size == size


@pytest.mark.parametrize(
    "made",
    [
        ("torch_geometric.datasets", "TUDataset", "TUDataset('data', name='MUTAG').shuffle()"),
        ("ogb.nodeproppred", "PygNodePropPredDataset", "PygNodePropPredDataset('ogbn-arxiv')"),
        ("dgl.data", "CoraGraphDataset", "CoraGraphDataset()"),
    ],
)
def test_a_data_set_that_a_library_processes(tmp_path: Path, made: tuple[str, str, str]) -> None:
    module, name, call = made
    script = f"import torch\nfrom {module} import {name}\n{SCRIPT_END.format(call=call)}"
    assert f"{FIRST}\n    graphs = {call}\n" in conversion(tmp_path, script).files[0].text


SCRIPT_END = """\
from torch.utils.data import DataLoader, TensorDataset

graphs = {call}
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=4):
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("start", ["with tempfile.TemporaryDirectory() as folder:\n    make(folder)", "make(OWN.name)"])
def test_files_in_a_temporary_folder_are_each_process_s_own(tmp_path: Path, start: str) -> None:
    function = "def make(folder):\n    for i in range(3):\n        torch.save(torch.ones(4), f'{folder}/{i}.pt')\n"
    own = "OWN = tempfile.TemporaryDirectory()\n"
    script = f"import tempfile\nimport torch\n{own}{function}{start}\n{SCRIPT_END.format(call='3')}"
    result = conversion(tmp_path, script)
    assert "\n        torch.save(torch.ones(4), f'{folder}/{i}.pt')\n" in result.files[0].text, "a rank reads its own"


def test_a_folder_that_a_process_asks_for_is_not_temporary(tmp_path: Path) -> None:
    script = "import tempfile\nimport torch\ntorch.save(torch.ones(4), 'a.pt')\nprint(tempfile.TemporaryDirectory())\n"
    text = conversion(tmp_path, script + SCRIPT_END.format(call="3")).files[0].text
    assert "    torch.save(torch.ones(4), 'a.pt')\n" in text


@pytest.mark.parametrize(
    "made",
    [
        "store = np.lib.format.open_memmap(path, mode='w+', shape=(32, 1))\n    store[:] = 1\n    store.flush()",
        "import somelib\n    somelib.build_index(torch.rand(32, 1), path)",
        "import subprocess\n    subprocess.check_output('make samples', shell=True)",
    ],
)
def test_whatever_makes_a_missing_file_makes_it_once(made: str, tmp_path: Path) -> None:
    read = "dataset = torch.from_numpy(np.array(np.load(path)))\n"
    script = f"{IMPORTS}\npath = 'samples.npy'\nif not os.path.exists(path):\n    {made}\n{read}{TRAIN}"
    lines = converted(tmp_path, script)
    assert lines[lines.index("if not os.path.exists(path):") - 1].startswith("with rd.output.main_process_first(")


@pytest.mark.parametrize("said", ["print('none at', path)", "logger.warning(path)", "open(path)", "str(path)"])
def test_what_only_tells_of_a_missing_file_makes_none(said: str, tmp_path: Path) -> None:
    head = f"{IMPORTS}import logging\nlogger = logging.getLogger()\npath = 'last.pt'\ndataset = torch.rand(32, 1)\n"
    rest = f"if not os.path.exists(path):\n    {said}\nelse:\n    print(torch.load(path))\n"
    assert not any("main_process_first" in line for line in converted(tmp_path, head + rest + TRAIN))


FETCHED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import CIFAR10, MNIST, VOCSegmentation


class Digits(MNIST):
    pass


data = MADE
loader = DataLoader(data, batch_size=4)
model = nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FIRST = "with rd.output.main_process_first():"


@pytest.mark.parametrize(
    "made",
    [
        "MNIST('d', True, None, None, True)",
        "Digits('d', True, None, None, True)",
        "VOCSegmentation('d', '2012', 'val', 1 > 0)",
    ],
)
def test_a_download_that_is_asked_for_by_position_is_made_first(made: str, tmp_path: Path) -> None:
    assert FIRST in converted(tmp_path, FETCHED.replace("MADE", made))


@pytest.mark.parametrize("made", ["CIFAR10('d', True, None, None, False)", "VOCSegmentation('d', '2012', 'val')"])
def test_what_is_there_already_is_read_at_once(made: str, tmp_path: Path) -> None:
    assert FIRST not in converted(tmp_path, FETCHED.replace("MADE", made))


MADE_EACH = """
def shrink(names):
    for name in names:
        small = os.path.join('small', name)
        if os.path.exists(small):
            continue
        os.makedirs('small', exist_ok=True)
        {made}


shrink(os.listdir('samples'))
dataset = torch.rand(32, 1)
"""


@pytest.mark.parametrize("made", ["np.save(small, np.load(name)[::2])", "os.system('shrink ' + name)"])
def test_what_is_missing_of_several_files_is_made_by_rank_0_first(made: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, IMPORTS + MADE_EACH.format(made=made) + TRAIN)
    assert lines[lines.index("def shrink(names):") - 1] == "@rd.output.main_process_first()"


def test_a_file_that_rank_0_alone_reads_is_not_waited_for(tmp_path: Path) -> None:
    changed = "torch.save(1, 'a.pt')\ntorch.save(torch.load('a.pt'), 'b.pt')\n"
    lines = converted(tmp_path, f"{IMPORTS}\ndataset = torch.rand(32, 1)\n{TRAIN}{changed}")
    assert "rd.barrier()" not in lines and any("'b.pt'" in line for line in lines)

"""What rank 0 writes and every process reads right after is waited for, once, where every process comes by."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

HEAD = """\
import argparse
import glob
import json
import os
import pickle
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--out", default=".")
args = parser.parse_args()
torch.manual_seed(0)
"""
TRAIN = """\
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
"""
EPOCH = "    "
FUNCTIONS = """\
def keep(path, value):
    with open(path, "w") as file:
        json.dump(value, file)


def get(path):
    with open(path) as file:
        return json.load(file)


class Store:
    def __init__(self, root):
        self.path = os.path.join(root, "scores.pkl")

    def put(self, value):
        pickle.dump(value, open(self.path, "wb"))

    def get(self):
        return pickle.load(open(self.path, "rb"))


"""
WAITING = {
    "a command": ["os.system('sleep 0.3; echo 1 > result.txt')", "print(open('result.txt').read())"],
    "a command in a list": [
        "subprocess.call(['bash', '-c', 'echo 1 > result.txt'])", "text = Path('result.txt').read_text()",
    ],
    "a renamed checkpoint": [
        "torch.save(model.state_dict(), 'new.pt')", "os.replace('new.pt', os.path.join(args.out, 'last.pt'))",
        "model.load_state_dict(torch.load(os.path.join(args.out, 'last.pt')))",
    ],
    "a copy": [
        "torch.save(1, 'a.pt')", "shutil.copy('a.pt', args.out + '/b.pt')", "best = torch.load(f'{args.out}/b.pt')",
    ],
    "an array": ["np.save('values.npy', np.ones(3))", "values = np.load('values.npy')"],
    "a text in functions": [
        "keep(os.path.join(args.out, 'a.json'), 1)", "value = get(os.path.join(args.out, 'a.json'))",
    ],
    "a path in a variable": ["path = os.path.join(args.out, str(epoch))", "keep(path, 1)", "value = get(path)"],
    "an attribute": ["store = Store(args.out)", "store.put(1)", "value = store.get()"],
    "what is in a folder, by a pattern that is put together": [
        "torch.save(1, os.path.join(args.out, '%d.pt' % epoch))", "found = list(Path(args.out).rglob('*.' + args.out))",
    ],
    "what is in a folder": ["torch.save(1, 'parts/%d.pt' % epoch)", "names = sorted(glob.glob('parts/*'))"],
}  # fmt: skip
NOT_WAITING = {
    "another file": ["torch.save(1, 'a.pt')", "best = torch.load('b.pt')"],
    "read before it is written, once": ["if epoch == 0:", "    pass"],
    "a folder": ["os.system('mkdir -p parts')", "names = os.listdir('parts')"],
    "written and read by rank 0": [
        "if os.environ.get('RANK', '0') == '0':", "    torch.save(1, 'a.pt')", "    best = torch.load('a.pt')",
    ],
}  # fmt: skip


def script(lines: list[str], before: list[str] = []) -> str:  # noqa: B006
    return HEAD + FUNCTIONS + "\n".join([*before, TRAIN]) + "".join(f"{EPOCH}{line}\n" for line in lines)


@pytest.mark.parametrize("way", WAITING)
def test_the_processes_wait_before_the_file_is_read(way: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script(WAITING[way]))
    assert lines.count("rd.barrier()") == 1
    assert lines[lines.index("rd.barrier()") + 1].startswith(WAITING[way][-1].partition("(")[0])


@pytest.mark.parametrize("way", NOT_WAITING)
def test_the_processes_do_not_wait_for_what_they_do_not_read(way: str, tmp_path: Path) -> None:
    assert "rd.barrier()" not in converted(tmp_path, script(NOT_WAITING[way]))


def test_what_is_read_in_the_next_epoch_is_waited_for(tmp_path: Path) -> None:
    text = script(["torch.save(1, 'best.pt')"]).replace(
        "    for (x,)", "    if os.path.exists('best.pt'):\n        best = torch.load('best.pt')\n    for (x,)"
    )
    lines = converted(tmp_path, text)
    assert lines.count("rd.barrier()") == 1


REPLACED = {
    "a list of files": "keep('list.json', names)",
    "opened here": "with open('list.json', mode='w') as file:\n    file.write(str(names))",
    "a checkpoint": "torch.save(names, 'list.json')",
    "removed": "os.remove('list.json')",
}


@pytest.mark.parametrize("way", REPLACED)
def test_what_all_processes_read_is_not_replaced_before_they_have(way: str, tmp_path: Path) -> None:
    read = ["keep('list.json', [epoch])", "names = get('list.json')", "for name in names[3:]:", "    os.remove(name)"]
    lines = converted(tmp_path, script([*read, *REPLACED[way].splitlines()]))
    assert lines[lines.index("names = get('list.json')") - 1] == "rd.barrier()"
    after = lines[len(lines) - lines[::-1].index("rd.barrier()") :]
    replaced = REPLACED[way].partition("(")[0]
    assert next(line for line in after if line != "if rd.is_main_process():").startswith(replaced)


def test_a_step_is_a_wait_of_its_own(tmp_path: Path) -> None:
    text = script(["torch.save(1, 'best.pt')", "best = torch.load('best.pt')"])
    assert converted(tmp_path, text).count("rd.barrier()") == 1


def test_what_is_prepared_before_the_training_is_waited_for(tmp_path: Path) -> None:
    before = ["keep('samples.json', [1, 2])", "samples = get('samples.json')"]
    lines = converted(tmp_path, script([], before))
    assert lines[lines.index("samples = get('samples.json')") - 1] == "rd.barrier()"


def test_both_processes_read_what_the_command_has_written(tmp_path: Path, launcher: Launcher) -> None:
    command = "os.system(f'sleep 0.5; echo score {epoch} > result.txt')"
    text = script([command, "assert open('result.txt').read() == f'score {epoch}\\n'"])
    (tmp_path / "train.py").write_text(conversion(tmp_path, text).files[0].text)
    add_runtime(tmp_path)
    result = launcher.run(tmp_path, "train.py", [], world_size=2)
    assert result["statuses"] == [0, 0], result["outputs"]


def test_a_test_for_a_file_that_was_just_written_is_waited_for(tmp_path: Path) -> None:
    after = 'keep("best.json", 1)\nfor name in ("best.json", "last.json"):\n    if os.path.exists(name):\n'
    after += "        print(get(name))\n"
    lines = converted(tmp_path, HEAD + FUNCTIONS + TRAIN + after)
    assert lines[lines.index("if os.path.exists(name):") - 1] == "rd.barrier()"
    assert lines.count("rd.barrier()") == 1, "not where some ranks do not come by"


EVALUATION = """\
from pycocotools.coco import COCO


class Results:
    def __init__(self, folder):
        self.coco = COCO("annotations.json")
        self.path = os.path.join(folder, "found.json")

    def evaluate(self, found):
        keep(self.path, found)
        return self.score(self.path)

    def score(self, path):
        return self.coco.loadRes(path)


"""


@pytest.mark.parametrize("made", ["Results('.')", "eval('Res' + 'ults')('.')", "globals()[args.out]('.')"])
def test_a_library_reads_it_in_a_method_of_an_object_that_may_not_be_known(made: str, tmp_path: Path) -> None:
    text = script(["value = results.evaluate([1])"], [f"results = {made}"])
    lines = converted(tmp_path, text.replace(FUNCTIONS, FUNCTIONS + EVALUATION))
    assert lines.count("rd.barrier()") == 1
    assert lines[lines.index("rd.barrier()") + 1] == "return self.score(self.path)"


SCORES = """\
import scores


class Board:
    def __init__(self, out):
        self.out = out

    def show(self):
        keep(self.out, 1)
        scores.table(title="found", path=self.out)


def show(path):
    scores.table("labels", path)


"""


@pytest.mark.parametrize(
    "steps",
    [
        ["keep(args.out, [1])", "show(args.out)"],
        ["keep(args.out, [1])", "scores.table(args.out)"],
        ["board = Board(args.out)", "board.show()"],
        ["out = args.out", "keep(out, [1])", "show(path=out)"],
    ],
)
def test_a_library_is_given_the_variable_that_names_the_file(steps: list[str], tmp_path: Path) -> None:
    lines = converted(tmp_path, script(steps).replace(FUNCTIONS, FUNCTIONS + SCORES))
    assert lines.count("rd.barrier()") == 1
    following = lines[lines.index("rd.barrier()") + 1]
    assert following.startswith("scores.table(title" if "board.show()" in steps else ("show(", "scores.table(args"))


def test_a_library_that_is_given_another_option_is_not_waited_for(tmp_path: Path) -> None:
    text = script(["keep(args.out, [1])", "scores.table(args.labels)", "scores.table(os.path.join('a', args.out))"])
    assert "rd.barrier()" not in converted(tmp_path, text.replace(FUNCTIONS, FUNCTIONS + SCORES))


def test_files_named_by_functions_of_one_module_are_not_the_same(tmp_path: Path) -> None:
    first = 'results = "results" + time.strftime("%H%M%S") + ".txt"\nopen(results, "w").write("1")\n'
    after = 'started = open(str(int(time.time())) + ".log").read()\n'
    lines = converted(tmp_path, HEAD.replace("import os\n", "import os\nimport time\n") + TRAIN + first + after)
    assert "rd.barrier()" not in lines


@pytest.mark.parametrize(
    "loop",
    [
        "        if x.max() > 1:\n            keep('stats.json', 1)\n            get('stats.json')\n",
        "        if x.max() > 1:\n            report()\n",
    ],
)
def test_ranks_that_come_there_by_their_own_samples_do_not_wait(tmp_path: Path, loop: str) -> None:
    report = "\n\ndef report():\n    keep('stats.json', 1)\n    print(get('stats.json'))\n\n\n"
    result = conversion(tmp_path, HEAD + FUNCTIONS + report + TRAIN + loop)
    (text,) = (file.text for file in result.files)
    left = [finding for finding in result.findings if finding.code == "RF508" and not finding.edits]
    assert "rd.barrier()" not in text and left, text


def test_the_size_of_a_file_is_read_before_rank_0_removes_it(tmp_path: Path) -> None:
    size = "def size_of(model):\n    torch.save(model.state_dict(), 'tmp.pt')\n    size = os.path.getsize('tmp.pt')\n"
    size += "    os.remove('tmp.pt')\n    return size\n\n\n"
    lines = converted(tmp_path, HEAD + size + TRAIN + f"{EPOCH}print(size_of(model))\n")
    start = lines.index("def size_of(model):")
    of_main, waits = "if rd.is_main_process():", "rd.barrier()"
    written, read = "torch.save(model.state_dict(), 'tmp.pt')", "size = os.path.getsize('tmp.pt')"
    assert lines[start + 1 : start + 8] == [of_main, written, waits, read, waits, of_main, "os.remove('tmp.pt')"]


@pytest.mark.parametrize(("status", "num_barriers"), [("3", 1), ("0", 0), ("", 0)])
def test_no_process_ends_with_a_status_while_rank_0_writes(tmp_path: Path, status: str, num_barriers: int) -> None:
    keep = "def keep(path):\n    torch.save(model.state_dict(), path)\n\n\n"
    end = f"if step == 10:\n            keep('last.pt')\n            exit({status})\n"
    train = TRAIN.replace("for epoch", "step = 0\nfor epoch") + f"        step += 1\n        {end}"
    lines = converted(tmp_path, HEAD + keep + train)
    assert lines.count("rd.barrier()") == num_barriers
    assert not num_barriers or lines[lines.index("rd.barrier()") + 1] == f"exit({status})"


def test_a_process_that_ends_alone_waits_for_no_other(tmp_path: Path) -> None:
    end = "if len('last.pt') and loss.isnan():\n            exit(1)\n"
    train = TRAIN.replace("model(x).pow(2).mean().backward()", "loss = model(x).pow(2).mean()\n        loss.backward()")
    train += "        torch.save(model.state_dict(), 'last.pt')\n        " + end
    assert "rd.barrier()" not in converted(tmp_path, HEAD + train)
    end = "try:\n    loader.check()\nexcept ValueError:\n    torch.save(1, 'error.pt')\n    exit(1)\n"
    assert "rd.barrier()" not in converted(tmp_path, HEAD + TRAIN + end)


@pytest.mark.parametrize("test", ["if epoch == 1:", "if epoch % 2 == 0:"])
def test_the_wait_is_not_put_where_rank_0_alone_comes(test: str, tmp_path: Path) -> None:
    before = 'before = json.load(open("best.json")) if os.path.exists("best.json") else 0\n'
    kept = f'{EPOCH}{test}\n{EPOCH * 2}shutil.rmtree("best.json")\n{EPOCH}print(epoch)\n'
    lines = converted(tmp_path, f"{HEAD}{TRAIN}{EPOCH}{before}{kept}")
    guarded = next(number for number, line in enumerate(lines) if "shutil.rmtree" in line) - 1
    assert lines[guarded].startswith("if rd.is_main_process() and ") and lines[guarded - 1] == "rd.barrier()"


@pytest.mark.parametrize("joined", ["args = options()", "args = Options().parse()", "settings = [options()]"])
def test_what_a_script_does_after_a_function_that_joins_is_waited_for(joined: str, tmp_path: Path) -> None:
    parsed = "parser = argparse.ArgumentParser()\n    return parser.parse_args()\n"
    functions = f"def options():\n    {parsed}\n\nclass Options:\n    def parse(self):\n        return options()\n\n\n"
    start = HEAD.partition("parser = ")[0]
    written = 'keep("scores.json", 1)\nscore = get("scores.json")\n'
    lines = converted(tmp_path, f"{start}{FUNCTIONS}\n\n{functions}{joined}\n{written}{TRAIN}{EPOCH}print(score)\n")
    assert lines[lines.index('score = get("scores.json")') - 1] == "rd.barrier()"


def test_no_process_waits_where_it_comes_by_its_own_clock(tmp_path: Path) -> None:
    start = "import time\nbegin = time.time()\nkeep('a.json', 1)\nnames = get('a.json')"
    timed = "        if time.time() - begin > 600:\n            keep('a.json', 2)\n            begin = time.time()\n"
    lines = converted(tmp_path, script([], [start]) + timed)
    assert lines[lines.index("if time.time() - begin > 600:") + 1] != "rd.barrier()"


@pytest.mark.parametrize("asked", ["os.path.exists(args.out + '/data')", "Path(args.out, 'data').exists()"])
def test_no_process_waits_in_what_rank_0_runs_first(asked: str, tmp_path: Path) -> None:
    functions = """\
def unpack(archive, folder):
    shutil.unpack_archive(archive, folder)
    os.remove(archive)


def fetch(url, folder):
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    torch.hub.download_url_to_file(url, "data.zip")


"""
    start = f"if not {asked}:\n    fetch('https://example.org/data.zip', args.out)\n    unpack('data.zip', 'data')\n"
    lines = converted(tmp_path, HEAD + functions + start + TRAIN)
    assert "with rd.output.main_process_first():" in lines and "rd.barrier()" not in lines

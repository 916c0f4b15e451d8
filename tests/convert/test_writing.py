"""Every way to write to the terminal or a file is rank 0's, also inside an expression; all ranks decide alike."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion
from verify.projects.launch import Launcher

from retrofit.rules.registry import RULES
from retrofit.training import read_project

HEAD = """\
import os, sys, subprocess, json
import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

"""
TRAIN = """\
torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = nn.Linear(3, 1)
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
"""
ONE = "if rd.is_main_process():\n    "
SHOWN = [
    ("sys.stdout.write('text')", None),
    ("sys.stderr.write('text')", None),
    ("out = sys.stdout\nout.write('text')", f"out = sys.stdout\n{ONE}out.write('text')"),
    ("os.write(1, b'text')", None),
    ("os.write(sys.stdout.fileno(), b'text')", None),
    ("from rich import print as show\nshow('text')", f"from rich import print as show\n{ONE}show('text')"),
    ("from rich.console import Console\nc = Console()\nc.print('x')", f"c = Console()\n{ONE}c.print('x')"),
    ("import click\nclick.echo('text')", f"import click\n{ONE}click.echo('text')"),
    ("from pprint import pprint\npprint({})", f"from pprint import pprint\n{ONE}pprint({{}})"),
    ("from tqdm import tqdm\ntqdm.write('text')", f"from tqdm import tqdm\n{ONE}tqdm.write('text')"),
    ("from tqdm import tqdm\nb = tqdm(total=3)\nb.write('text')", f"\n{ONE}b.write('text')"),
    ("from tqdm import trange\nwith trange(3) as b:\n    say = lambda text: b.write(text)",
     "say = lambda text: (rd.is_main_process() and b.write(text))"),
    ("print('text', file=sys.stderr)", "print_main as print"),
    # Files, also from inside an expression.
    ("save = lambda path: torch.save(model, path)", "save = lambda path: torch.save(model, rd.path_on_main(path))"),
    ("keep = [lambda: torch.save(1, 'a.pt')]", "keep = [lambda: torch.save(1, rd.path_on_main('a.pt'))]"),
    ("hooks = []\nhooks.append(lambda: torch.save(1, f='a.pt'))",
     "hooks.append(lambda: torch.save(1, f=rd.path_on_main('a.pt')))"),
    ("done = torch.save(1, 'a.pt') if epoch else None",
     "done = torch.save(1, rd.path_on_main('a.pt')) if epoch else None"),
    ("make = lambda: os.makedirs('x')", "make = lambda: (rd.is_main_process() and os.makedirs('x'))"),
    ("keep = lambda: np.save('a.npy', [1])", "keep = lambda: (rd.is_main_process() and np.save('a.npy', [1]))"),
    ("import zipfile\nz = zipfile.ZipFile('a.zip', 'w')", "zipfile.ZipFile(rd.path_on_main('a.zip'), 'w')"),
    ("import safetensors.torch\nsafetensors.torch.save_file({}, 'a')", None),
    ("subprocess.Popen(['tensorboard'])", None),
    ("answer = input('go on? ')", "answer = rd.output.answer_of_main(input, 'go on? ')"),
    ("sys.stdout.flush()", ""),
    ("commit = subprocess.check_output(['git', 'log'])", ""),
]  # fmt: skip
ASKED = [
    ("if os.path.exists('out'):\n    raise SystemExit('there is one')\nos.makedirs('out')",
     "if rd.output.answer_of_main(os.path.exists, 'out'):"),
    ("out = 'out'\nassert not os.path.isdir(out)\nos.makedirs(os.path.join(out, 'logs'))",
     "assert not rd.output.answer_of_main(os.path.isdir, out)"),
    ("from pathlib import Path\nout = Path('out')\nif out.exists():\n    sys.exit(1)\nout.mkdir()",
     "if rd.output.answer_of_main(out.exists):"),
    ("if os.path.exists('out') and os.listdir('out'):\n    sys.exit(1)\nos.makedirs('out', exist_ok=True)",
     "if rd.output.answer_of_main(os.path.exists, 'out') and rd.output.answer_of_main(os.listdir, 'out'):"),
    ("mode = 'a' if os.path.exists('log.txt') else 'w'\nf = open('log.txt', 'w')",
     "mode = 'a' if rd.output.answer_of_main(os.path.exists, 'log.txt') else 'w'"),
    ("if os.path.exists('out'):\n    if input('remove? ') != 'n':\n        os.rmdir('out')\n"
     "        os.makedirs('out')\nelse:\n    os.makedirs('out')",
     "if rd.output.answer_of_main(os.path.exists, 'out'):"),
    ("def ask():\n    return input('remove? ')\nif os.path.exists('out'):\n    if len('a') > 2 or ask() == 'y':\n"
     "        os.rmdir('out')\nos.makedirs('out', exist_ok=True)",
     "if rd.output.answer_of_main(os.path.exists, 'out'):"),
    ("if not os.path.exists('out'):\n    os.makedirs('out')", "if rd.is_main_process() and not os.path.exists('out'):"),
    ("if os.path.exists('old.pt'):\n    model.load_state_dict(torch.load('old.pt', map_location='cpu'))",
     "if os.path.exists('old.pt'):"),
    # Rank 0 alone makes it, so it may be the only one whose attempt fails.
    ("try:\n    os.makedirs('out')\nexcept OSError:\n    if not os.path.isdir('out'):\n        raise",
     "    if not os.path.isdir('out'):"),
]  # fmt: skip


def changed(folder: Path, lines: str) -> str:
    result = conversion(folder, HEAD + TRAIN + lines + "\n")
    assert not result.refusals
    text = result.files[0].text
    ast.parse(text)
    (folder / "train.py").write_text(text)
    again = read_project(folder / "train.py")
    found = [f for code in ("RF501", "RF504", "RF505", "RF512") for f in RULES[code].find(again)]
    assert [(f.code, f.message) for f in found] == [], "the change ends the finding"
    return text


@pytest.mark.parametrize(("lines", "expected"), SHOWN)
def test_rank_0_alone_writes(lines: str, expected: str | None, tmp_path: Path) -> None:
    text = changed(tmp_path, lines)
    if expected == "":
        assert lines in text and f"{ONE}{lines}" not in text
    else:
        assert (f"{ONE}{lines.splitlines()[-1]}" if expected is None else expected) in text, text


@pytest.mark.parametrize(("lines", "expected"), ASKED)
def test_all_ranks_decide_by_what_rank_0_finds(lines: str, expected: str, tmp_path: Path) -> None:
    assert expected in changed(tmp_path, lines)


SLOW = """\
import os, time

def wait():
    time.sleep(0.7 * int(os.environ.get("RANK", "0")))
"""
RUN = """\
from slow import wait

wait()
if os.path.exists("out"):
    if input("overwrite? ") != "y":
        sys.exit("there is one")
os.makedirs("out", exist_ok=True)
save = lambda: torch.save(model.state_dict(), "out/model.pt")
"""
END = """\
    sys.stdout.write("epoch %d\\n" % epoch)
    save()
"""


def test_two_processes_that_test_for_and_create_a_folder_both_finish(launcher: Launcher, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "train.py").write_text(conversion(tmp_path, HEAD + RUN + TRAIN + END).files[0].text)
    add_runtime(tmp_path)
    result = launcher.run(tmp_path, "train.py", [], 2, timeout_s=120)
    assert result["statuses"] == [0, 0], result["outputs"]
    assert [output.count("epoch ") for output in result["outputs"]] == [2, 0]
    assert (tmp_path / "out" / "model.pt").stat().st_size > 0


def test_a_folder_with_a_message_about_its_creation(tmp_path: Path) -> None:
    making = "from pathlib import Path\nfolder = Path('out')\nif not folder.exists():\n    print('making', folder)\n"
    making += "    folder.mkdir()\ninner = folder / 'a'\ninner.mkdir(parents=True, exist_ok=True)\n"
    result = conversion(tmp_path, HEAD + making + TRAIN)
    assert not result.refusals
    assert "    print('making', folder)\n    if rd.is_main_process():\n        folder.mkdir()\n" in result.files[0].text

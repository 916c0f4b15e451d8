"""Files that stay open while they are filled: rank 0 fills them alone, and what reads them finds them complete."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert.conversion import add_runtime, conversion, converted
from verify.projects.launch import Launcher

SCRIPT = """\
import sqlite3

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.rand(32, 1)
loader = DataLoader(TensorDataset(x), 8, shuffle=True)
model = nn.Linear(1, 1)
optimizer = optim.SGD(model.parameters(), lr=1e-3)
BEFORE
for epoch in range(2):
    for (inputs,) in loader:
        optimizer.zero_grad()
        loss = model(inputs).pow(2).mean()
        loss.backward()
        optimizer.step()
    EPOCH
AFTER
"""
FILLED = "rd.output.on_main_process("


def script(before: str, epoch: str = "pass", after: str = "") -> str:
    return SCRIPT.replace("BEFORE", before).replace("EPOCH", epoch).replace("AFTER", after)


@pytest.mark.parametrize(
    ("before", "epoch"),
    [
        ("kept = np.memmap('x.dat', mode='w+', shape=(2,))", "kept[epoch] = loss.item()"),
        ("kept = np.lib.format.open_memmap('x.npy', mode='w+', shape=(2,))", "kept[epoch] = loss.item()"),
        ("import zarr\nkept = zarr.open('x.zarr', mode='w')", "kept.attrs.put({'loss': loss.item()})"),
        ("import cv2\nvideo = cv2.VideoWriter('x.mp4', 0, 20, (8, 8))", "video.write(np.zeros((8, 8)))"),
        ("import pandas as pd\nbook = pd.ExcelWriter('x.xlsx')", "pd.DataFrame([1]).to_excel(book)"),
        (
            "from matplotlib.backends.backend_pdf import PdfPages\npages = PdfPages('x.pdf')",
            "pages.savefig()",
        ),
        ("db = sqlite3.connect('x.db')\ncursor = db.cursor()", "cursor.execute('insert into x values (1)')"),
        (
            "import lmdb\nkept = lmdb.open('x')",
            "with kept.begin(write=True) as entries:\n        entries.put(b'a', b'b')",
        ),
        ("import shelve\nkept = shelve.open('runs')", "kept[str(epoch)] = loss.item()"),
        ("import dbm\nkept = dbm.open('runs', 'c')", "kept[str(epoch)] = str(loss.item())"),
        (
            "import sqlalchemy as sa\nkept = sa.create_engine('sqlite:///x.db')",
            "with kept.begin() as rows:\n        rows.execute(sa.insert('x'), [{'loss': 1}])",
        ),
    ],
)
def test_what_is_only_filled_is_rank_0s_alone(before: str, epoch: str, tmp_path: Path) -> None:
    assert any(FILLED in line for line in converted(tmp_path, script(before, epoch)))


@pytest.mark.parametrize(
    "before",
    [
        "kept = np.memmap('x.dat', mode='r', shape=(2,))",
        "import lmdb\nwith lmdb.open('x').begin() as entries:\n    kept = entries.get(b'a')",
        "import shelve\nkept = shelve.open('runs', 'r')",
        "import sqlalchemy as sa\nkept = sa.create_engine('sqlite:///x.db').connect().execute(sa.text('select 1'))",
        "import requests\nkept = requests.post('http://here/data', json={'part': 1}).json()",
        "kept = sqlite3.connect('x.db').execute('select * from x').fetchall()",
        "import zarr\nkept = zarr.open('x.zarr', mode='r')",
        "class Files:\n    def open(self, name, mode):\n        return [name]\nFiles().open('x', mode='w')",
    ],
)
def test_what_is_read_stays_as_it_is(before: str, tmp_path: Path) -> None:
    lines = converted(tmp_path, script(before))
    assert {line.strip() for line in before.splitlines()} <= set(lines)


def test_what_is_filled_and_read_is_left_to_a_person_by_its_line(tmp_path: Path) -> None:
    before = "kept = np.memmap('x.dat', mode='w+', shape=(2,))"
    found = conversion(tmp_path, script(before, "kept[epoch] = loss.item()", "print(kept.mean())")).findings
    (advice,) = [finding for finding in found if finding.code == "RF501"]
    assert "numpy.memmap writes on every process" in advice.message and not advice.edits


@pytest.mark.parametrize(
    "line",
    [
        "requests.post('http://here/losses', json={'epoch': epoch})",
        "client.runs.insert_one({'epoch': epoch})",
        "store.upload_file('x.pt', 'runs', 'x.pt')",
        "mail.sendmail('me', 'you', 'done')",
        "faiss.write_index(index, 'x.index')",
    ],
)
def test_what_is_sent_is_sent_once(line: str, tmp_path: Path) -> None:
    before = (
        "import boto3\nimport faiss\nimport pymongo\nimport requests\nimport smtplib\nmail = smtplib.SMTP()\n"
        "client, store, index = pymongo.MongoClient(), boto3.client('s3'), faiss.IndexFlatL2(1)"
    )
    lines = converted(tmp_path, script(before, line))
    assert lines[lines.index(line) - 1] == "if rd.is_main_process():"


def test_an_engine_that_sessions_use_is_one_in_memory_elsewhere(tmp_path: Path) -> None:
    before = (
        "import sqlalchemy as sa\nfrom sqlalchemy.orm import Session\nengine = sa.create_engine('sqlite:///x.db')\n"
        "sa.MetaData().create_all(engine)\nsession = Session(bind=engine)"
    )
    lines = converted(tmp_path, script(before, "session.add(epoch)\n    session.commit()", "print(session.query(1))"))
    assert "engine = sa.create_engine('sqlite:///x.db' if rd.is_main_process() else \"sqlite://\")" in lines


OPENED = "import sqlite3\n\n\ndef opened(path):\n    return sqlite3.connect(path)\n"


def test_a_database_that_another_file_opens_is_rank_0s_alone(tmp_path: Path) -> None:
    before = "from databases import opened\ndb = opened('x.db')\ndb.execute('create table x (loss real)')"
    after = "db.execute('insert into x values (1)')\ndb.commit()"
    result = conversion(tmp_path, script(before, after=after), databases=OPENED)
    (text,) = (file.text for file in result.files if file.path.name == "databases.py")
    assert 'sqlite3.connect(path if rd.is_main_process() else ":memory:")' in text


def test_a_database_that_is_read_next_to_one_that_is_filled(tmp_path: Path) -> None:
    before = (
        "TABLE = 'create table x (loss real)'\nkept = sqlite3.connect('y.db').execute('select * from y').fetchall()\n"
        "db = sqlite3.connect('x.db')\ncursor = db.cursor()\ncursor.execute(TABLE)\nprint(cursor.fetchone())"
    )
    lines = converted(tmp_path, script(before, "db.executemany('insert into x values (?)', [(1,)])"))
    assert "db = sqlite3.connect('x.db' if rd.is_main_process() else \":memory:\")" in lines
    assert "kept = sqlite3.connect('y.db').execute('select * from y').fetchall()" in lines


def test_a_database_gets_each_row_once(tmp_path: Path, launcher: Launcher) -> None:
    before = "import shelve\ndb = sqlite3.connect('x.db')\ndb.execute('create table x (loss real)')"
    epoch = (
        "db.execute('insert into x values (?)', (loss.item(),))\n"
        "    with shelve.open('runs') as runs:\n        runs[str(epoch)] = 1"
    )
    after = "db.commit()\nprint('rows', db.execute('select count(*) from x').fetchone()[0])"
    (file,) = conversion(tmp_path, script(before, epoch, after)).files
    (tmp_path / "train.py").write_text(file.text)
    add_runtime(tmp_path)
    run = launcher.run(tmp_path, "train.py", [], 2, timeout_s=60)
    assert run["statuses"] == [0, 0], run["outputs"]
    assert "rows 2" in run["outputs"][0]

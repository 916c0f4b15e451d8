"""What the trace sees of torch.save and torch.load."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
from pathlib import Path

import pytest
import torch
from torch import nn
from traced_child import Child, kinds_of, make_place

from retrofit.verify.trace.events import FileChange, FileLoad, FileSave
from retrofit.verify.trace.filesystem import contents


@pytest.fixture
def place(tmp_path):
    return make_place(tmp_path)


@pytest.fixture
def run(place):
    return lambda task, ignore=(): Child(task, place, ignore).events()


@pytest.mark.parametrize("path", ["a.pt", Path("a.pt"), "./sub/../a.pt"])
def test_a_save_to_a_path(place, run, path):
    (place / "project" / "sub").mkdir()
    events = run(lambda: torch.save({"model": {"w": torch.zeros(2, 3)}, "epoch": 1}, path))
    keys = {"model/w": "float32[2, 3]", "epoch": "int"}
    assert events == [FileChange("write", "a.pt"), FileSave("a.pt", keys, {"model/w": [0.0, 0.0], "epoch": 1})]
    assert torch.load(place / "project" / "a.pt")["epoch"] == 1


def test_a_save_to_an_open_file(place, run):
    def task():
        with open("a.pt", "wb") as file:
            torch.save([1], file)

    assert [type(event) for event in run(task)] == [FileChange, FileSave]


def test_a_save_to_memory_is_not_a_file(run):
    assert run(lambda: torch.save([1], io.BytesIO())) == []


def test_arguments_reach_torch_as_they_are(place, run):
    def task():
        torch.save(obj=nn.Linear(1, 1), f="a.pt", pickle_protocol=3)
        assert isinstance(torch.load("a.pt", "cpu", weights_only=False), nn.Linear)
        assert isinstance(torch.load(f="a.pt", map_location=None, weights_only=False), nn.Linear)
        torch.serialization.save(1, "b.pt")

    events = run(task)
    assert [event.path for event in kinds_of(events, FileSave)] == ["a.pt", "b.pt"]
    assert [event.has_map_location for event in kinds_of(events, FileLoad)] == [True, False]


def test_a_save_that_fails_is_a_write_and_no_save(run):
    def task():
        with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
            torch.save(lambda: None, "a.pt")

    assert [type(event) for event in run(task)] == [FileChange]


def test_a_renamed_file_is_a_save_under_its_final_name_too(run):
    def task():
        torch.save([1], "a.pt.tmp")
        os.replace("a.pt.tmp", "a.pt")
        os.replace("a.pt", "b.pt")

    events = run(task)
    assert [event.path for event in kinds_of(events, FileSave)] == ["a.pt.tmp", "a.pt", "b.pt"]
    assert kinds_of(events, FileChange)[1] == FileChange("rename", "a.pt", source="a.pt.tmp")


def test_files_in_a_renamed_folder_are_saves_there_too(place, run):
    def task():
        os.mkdir("tmp-1")
        torch.save([1], "tmp-1/a.pt")
        torch.save([1], "tmp-10.pt")
        os.rename("tmp-1", "checkpoint-1")

    saved = [event.path for event in kinds_of(run(task), FileSave)]
    assert saved == ["tmp-1/a.pt", "tmp-10.pt", "checkpoint-1/a.pt"]


def test_a_load_records_which_run_wrote_the_file(place, run):
    torch.save([1], place / "original" / "user.pt")
    (place / "project" / "linked.pt").symlink_to(place / "original" / "user.pt")

    def task():
        torch.save([2], "own.pt")
        os.symlink("own.pt", "latest.pt")
        torch.load("own.pt")
        torch.load("latest.pt", map_location="cpu")
        torch.load(Path("linked.pt"))
        torch.load(str(place / "original" / "user.pt"))
        with open("own.pt", "rb") as file:
            torch.load(file)
        torch.load(io.BytesIO(Path("own.pt").read_bytes()))

    assert kinds_of(run(task), FileLoad) == [
        FileLoad("own.pt", has_map_location=False, is_own=True, by_script=False),
        FileLoad("latest.pt", has_map_location=True, is_own=True, by_script=False),
        FileLoad("linked.pt", has_map_location=False, is_own=False, by_script=False),
        FileLoad(str(place / "original" / "user.pt"), has_map_location=False, is_own=False, by_script=False),
        FileLoad("own.pt", has_map_location=False, is_own=True, by_script=False),
    ]


def test_a_load_is_the_script_s_where_its_caller_is_in_the_project(place, run):
    own = place / "project" / "helpers.py"
    own.write_text("import torch\ndef load(): return torch.load('own.pt')\n")

    def task():
        torch.save([2], "own.pt")
        spec = importlib.util.spec_from_file_location("helpers", own)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.load()
        torch.load("own.pt")  # of this file, which is not in the project

    assert [event.by_script for event in kinds_of(run(task), FileLoad)] == [True, False]


def test_what_is_in_a_checkpoint():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "best": 0.5, "name": "x"}
    keys = contents.describe(content)
    assert keys["model/0.weight"] == "float32[3, 2]"
    assert keys["model/1.num_batches_tracked"] == "int64[]"
    assert keys["optimizer/state/0/momentum_buffer"] == "float32[3, 2]"
    assert keys["optimizer/param_groups/0/lr"] == "float"
    assert keys["optimizer/param_groups/0/params/3"] == "int"
    assert (keys["best"], keys["name"]) == ("float", "str")


def test_a_whole_module():
    assert contents.describe(nn.Linear(2, 1)) == {
        "": "module:Linear",
        "weight": "float32[1, 2]",
        "bias": "float32[1]",
    }
    keys = contents.describe({"net": nn.DataParallel(nn.Linear(2, 1))})
    assert keys["net"] == "module:DataParallel" and keys["net/module.weight"] == "float32[1, 2]"


def test_unusual_contents_of_a_checkpoint():
    assert contents.describe(torch.zeros(2)) == {"": "float32[2]"}
    assert contents.describe({"empty": {}, "none": None, 3: [()]}) == {
        "empty": "dict",
        "none": "NoneType",
        "3/0": "tuple",
    }
    assert contents.describe({"losses": [0.5] * 101, "few": (1, 2)})["losses"] == "list[101]"
    endless = {}
    endless["again"] = endless
    assert list(contents.describe(endless).values()) == ["dict"]
    many = contents.describe({str(number): number for number in range(3000)})
    assert len(many) == contents.MOST_LEAVES + 1 and many["..."] == "more"

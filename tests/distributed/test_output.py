"""Output from one rank only."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import sys
import time
from pathlib import Path

import hydra
import pytest
from hydra.core.hydra_config import HydraConfig

from retrofit.distributed import get_rank, print_main
from retrofit.distributed.output import SilentObject, answer_of_main, on_main_process, share_hydra_run


def test_one_process_prints_and_writes(capsys):
    print_main("a", 1, sep="-", end="!")
    assert capsys.readouterr().out == "a-1!"
    assert on_main_process(dict, [("a", 1)], b=2) == {"a": 1, "b": 2}


def speak():
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_main("hello from", get_rank())
    made = on_main_process(list, "ab")
    return text.getvalue(), made if isinstance(made, list) else type(made).__name__


def test_only_rank_0_prints_and_makes_the_object(ranks):
    silent = ("", "SilentObject")
    assert ranks(3).run(speak) == [("hello from 0\n", ["a", "b"]), silent, silent]


def run_of_hydra(folder, monkeypatch=pytest.MonkeyPatch):
    """Let Hydra run a function in a folder, a second later on the next rank; return the folder of the run."""

    def main(config):
        logging.getLogger("run").info("from rank %d", get_rank())
        return folders.append(HydraConfig.get().runtime.output_dir)

    folders = []
    time.sleep(get_rank() * 1.1)
    with monkeypatch.context() as changed:
        changed.chdir(folder)
        changed.setattr(sys, "argv", ["train.py"])
        share_hydra_run()
        hydra.main(version_base=None, config_path=str(folder))(main)()
    return folders


def test_the_ranks_have_one_run_of_hydra_which_rank_0_writes(ranks, tmp_path):
    folders, others = ranks(2).run(run_of_hydra, tmp_path)
    assert folders == others
    files = {path.name: path.read_text() for path in Path(folders[0]).rglob("*.*") if path.is_file()}
    assert sorted(files) == ["config.yaml", "hydra.yaml", "overrides.yaml", "test_output.log"]
    assert "from rank 0" in files["test_output.log"] and "from rank 1" not in files["test_output.log"]


def test_a_silent_object_accepts_every_call():
    writer = SilentObject()
    assert not writer.add_scalar("loss", 1.0, step=3)
    assert not writer.file_writer.get_logdir()
    assert not writer
    with writer as same:
        assert same is writer


def test_no_file_can_be_made_below_a_path_of_a_silent_object():
    writer = SilentObject()
    for folder in (writer.log_dir, writer.file_writer.get_logdir()):
        path = Path(os.path.join(folder, "best.pt"))
        with pytest.raises(OSError):
            path.write_bytes(b"")
        assert path == Path(folder) / "best.pt"


def test_a_silent_object_hides_no_error_of_the_block():
    with pytest.raises(KeyError), SilentObject():
        raise KeyError


def test_a_silent_object_implements_no_special_protocol():
    assert isinstance(copy.deepcopy(SilentObject()), SilentObject)
    with pytest.raises(TypeError):
        iter(SilentObject())


def asked_of_main(fails):
    def ask(text, *, more):
        if fails:
            raise OSError("no such folder")
        return f"{text}{more} on rank {get_rank()}"

    try:
        return answer_of_main(ask, "asked", more=1)
    except (OSError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"


def test_all_ranks_use_the_answer_of_rank_0(ranks):
    assert ranks(2).run(asked_of_main, False) == ["asked1 on rank 0"] * 2
    assert asked_of_main(False) == "asked1 on rank 0"
    first, second = ranks(2).run(asked_of_main, True)
    assert first == "OSError: no such folder"
    assert second == "RuntimeError: ask failed on rank 0: OSError: no such folder"

"""Output from one rank only."""

from __future__ import annotations

import contextlib
import copy
import io
import os
import sys
import time
import types
from pathlib import Path

import pytest

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


def run_of_hydra():
    utils = types.ModuleType("hydra.core.utils")  # what Hydra calls in it, without Hydra
    utils.localtime, utils._save_config, utils.configure_log = time.localtime, print, print
    sys.modules["hydra.core.utils"] = utils
    time.sleep(get_rank() * 1.1)
    share_hydra_run()
    return tuple(utils.localtime()), [function is print for function in (utils._save_config, utils.configure_log)]


def test_the_ranks_have_one_run_of_hydra(ranks):
    (now, writes), other = ranks(2).run(run_of_hydra)
    assert writes == [True, True] and other == (now, [False, False])


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

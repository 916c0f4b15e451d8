"""Checkpoints: whole or not at all, without prefixes, readable without running code."""

from __future__ import annotations

import argparse
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from rank_pool import fork_server
from run_program import program_environment
from torch import nn

from retrofit.distributed import DDPWrapper, get_rank, load_checkpoint, save_checkpoint
from retrofit.distributed.checkpoint.atomic_file import copy_atomically
from retrofit.distributed.checkpoint.full import load_weights, read_checkpoint, restore_checkpoint
from retrofit.distributed.data.random_state import get_rng_state, set_rng_state


def new_model(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


def trained(model, num_steps=3):
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    return optimizer, scheduler


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor):
        assert actual.dtype == expected.dtype and torch.equal(actual, expected)
    elif isinstance(expected, dict):
        assert list(actual) == list(expected)
        for key in expected:
            assert_same(actual[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            assert_same(one, other)
    else:
        assert actual == expected


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def saved(path, **extra):
    model = new_model()
    optimizer, scheduler = trained(model)
    save_checkpoint(model, optimizer, 7, path, scheduler=scheduler, **extra)
    return model, optimizer, scheduler


def test_everything_comes_back(path):
    extra = {"best": 0.5, "options": {"lr": 1e-3, "names": ["a", "b"], "size": (3, 4), "none": None, "on": True}}
    model, optimizer, scheduler = saved(path, **extra)
    other = new_model()
    other_optimizer, other_scheduler = trained(other, 1)
    content = load_checkpoint(other, other_optimizer, path, scheduler=other_scheduler)
    assert_same(other.state_dict(), model.state_dict())
    assert_same(other_optimizer.state_dict(), optimizer.state_dict())
    assert_same(other_scheduler.state_dict(), scheduler.state_dict())
    assert (content["epoch"], content["world_size"]) == (7, 1)
    assert_same({key: content[key] for key in extra}, extra)
    set_rng_state(content["rng_states"][0])
    first = torch.rand(3)
    set_rng_state(content["rng_states"][0])
    assert torch.equal(torch.rand(3), first)


def test_an_explicit_random_state_is_saved(path):
    mine = {"now": get_rng_state(), "epoch_start": get_rng_state()}
    save_checkpoint(new_model(), None, 0, path, rng_state=mine)
    assert set(read_checkpoint(path)["rng_states"][0]) == {"now", "epoch_start"}


def test_a_missing_folder_is_made(tmp_path):
    save_checkpoint(new_model(), None, 0, tmp_path / "a" / "b" / "c.pt")
    assert files(tmp_path / "a" / "b") == ["c.pt"]


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, lambda model: torch.compile(model, backend="eager")],
    ids=["DataParallel", "compile"],
)
def test_no_wrapper_is_in_the_file_and_every_wrapper_loads_it(path, wrap):
    model = new_model()
    save_checkpoint(wrap(model), None, 0, path)
    assert_same(dict(read_checkpoint(path)["model"]), dict(model.state_dict()))
    other = new_model()
    load_checkpoint(wrap(other), None, path)
    assert_same(other.state_dict(), model.state_dict())


def test_a_checkpoint_with_prefixes_loads(path):
    model = new_model()
    torch.save({"model": {f"module._orig_mod.{k}": v for k, v in model.state_dict().items()}}, path)
    other = new_model()
    load_checkpoint(other, None, path)
    assert_same(other.state_dict(), model.state_dict())


# ---- refusals


class RunsCode:
    def __reduce__(self):
        return (os.mkdir, (str(Path(os.environ["PYTEST_CURRENT_TEST"]).name),))


def test_a_pickle_that_would_run_code_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": {}, "evil": RunsCode()}, path)
    with pytest.raises(ValueError) as caught:
        read_checkpoint(path)
    text = str(caught.value)
    assert f"checkpoint {path} is not loaded: it holds a posix.mkdir" in text and "state_dicts instead" in text
    assert "\n" not in text and "weights_only" not in text.split("it holds")[0]
    assert files(tmp_path) == ["checkpoint.pt"], "the code was run"


@pytest.mark.parametrize(
    "value",
    [np.float64(0.5), Path("a"), argparse.Namespace(lr=1), nn.Linear(1, 1)],
    ids=lambda value: type(value).__name__,
)
def test_content_that_could_not_be_loaded_again_is_refused_at_the_save(path, tmp_path, value):
    model, *_ = saved(path)
    before = path.read_bytes()
    holder = {"inside": [value]}
    with pytest.raises(ValueError, match=r"is not written: it would hold a \S+, which weights_only=True"):
        save_checkpoint(model, None, 8, path, extra=holder)
    assert path.read_bytes() == before and files(tmp_path) == ["checkpoint.pt"]


def changed_by(action, model, optimizer):
    before = pickle.dumps((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(ValueError) as caught:
        action()
    assert pickle.dumps((model.state_dict(), optimizer.state_dict())) == before, (
        "a refused checkpoint changed something"
    )
    return str(caught.value)


def test_the_checkpoint_of_another_model_changes_nothing(path):
    saved(path)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2), nn.Linear(2, 2))
    optimizer, _ = trained(model)
    text = changed_by(lambda: load_checkpoint(model, optimizer, path), model, optimizer)
    assert f"checkpoint {path} is of another model, 9 difference(s): missing 3.weight; missing 3.bias" in text
    assert "build the model with the options it was trained with" in text
    text = changed_by(lambda: load_weights(model, {"x": torch.ones(1)}, "other.pt"), model, optimizer)
    assert "other.pt" in text


def test_another_shape_is_named(path):
    saved(path)
    model = new_model(width=5)
    optimizer, _ = trained(model)
    text = changed_by(lambda: load_checkpoint(model, optimizer, path), model, optimizer)
    assert "0.weight is (4, 3) there, (5, 3) here" in text


def test_a_missing_part_changes_nothing(path):
    save_checkpoint(new_model(), None, 0, path)
    model = new_model()
    optimizer, scheduler = trained(model)
    text = changed_by(lambda: load_checkpoint(model, optimizer, path), model, optimizer)
    assert f"checkpoint {path} holds no 'optimizer'" in text
    text = changed_by(lambda: load_checkpoint(model, None, path, scheduler=scheduler), model, optimizer)
    assert "holds no 'scheduler'; it was saved without one" in text
    load_checkpoint(model, None, path, ema=None)


def test_the_state_of_another_optimizer_changes_nothing(path):
    saved(path)
    model = new_model()
    optimizer = torch.optim.Adam([{"params": model[0].parameters()}, {"params": model[2].parameters()}])
    text = changed_by(lambda: restore_checkpoint(read_checkpoint(path), path, model, optimizer), model, optimizer)
    assert f"checkpoint {path} does not fit, optimizer: loaded state dict has a different number of" in text


def test_missing_and_foreign_files_are_reported(path):
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at {path}"):
        load_checkpoint(new_model(), None, path)
    torch.save([1, 2], path)
    with pytest.raises(ValueError, match="has no 'model' entry"):
        read_checkpoint(path)


# ---- damage


def test_every_truncation_is_reported_as_damage(path):
    saved(path)
    whole = path.read_bytes()
    for size in {0, 1, 2, 3, 4, 30, 100, *range(200, len(whole), len(whole) // 40), len(whole) - 1}:
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=f"checkpoint {path} is damaged"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"\x80\x04N.", b"PK\x03\x04garbage", b"\0" * 5000, random.Random(0).randbytes(999)],
    ids=["text", "pickle", "zip", "zeros", "noise"],  # the same in every process that collects the tests
)
def test_no_checkpoint_at_all_is_reported(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"checkpoint {path} (is damaged|has no 'model')"):
        read_checkpoint(path)


def test_a_flipped_bit_is_reported_or_harmless(path):
    saved(path)
    whole, expected = path.read_bytes(), read_checkpoint(path)
    num_found = 0
    for position in range(0, len(whole), 61):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        try:
            content = read_checkpoint(path)
        except ValueError as error:
            assert f"checkpoint {path} is damaged" in str(error)
            num_found += 1
        else:  # padding, a time stamp
            assert_same(content, expected)
    assert num_found > len(whole) // 61 // 4


def test_a_flipped_bit_that_turns_an_entry_into_a_folder_is_reported(path):
    saved(path)
    whole = path.read_bytes()
    start = whole.index(b"PK\1\2")  # the first entry of the archive's directory
    position = start + 38  # its external attributes, of which MS-DOS's come first
    path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
    with pytest.raises(ValueError, match=f"checkpoint {path} is damaged.*marked as a folder"):
        read_checkpoint(path)


def test_a_flipped_weight_is_reported(path):
    model, *_ = saved(path)
    whole = bytearray(path.read_bytes())
    position = bytes(whole).index(model[0].weight.detach().numpy().tobytes())
    whole[position] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(ValueError, match=r"is damaged.*bad checksum in .*data"):
        read_checkpoint(path)


# ---- atomic


def save_forever(path, is_saved):
    """Save again and again; a task of a process of its own."""
    model = nn.Linear(300, 300)
    for number in range(10**9):
        nn.init.constant_(model.weight, number)
        nn.init.constant_(model.bias, number)
        save_checkpoint(model, None, number, path)
        is_saved.set()


def test_killed_at_any_moment_the_file_is_whole(path):
    context = fork_server()
    for delay_s in (0.0, 0.0137, 0.0291):
        is_saved = context.Event()
        process = context.Process(target=save_forever, args=(str(path), is_saved))
        process.start()
        try:
            assert is_saved.wait(120)
            for _ in range(20):  # a reader next to the writer never sees half a file either
                content = read_checkpoint(path)
                assert bool((content["model"]["weight"] == content["epoch"]).all())
            time.sleep(delay_s)
        finally:
            process.kill()
            process.join()
        content = read_checkpoint(path)
        assert bool((content["model"]["weight"] == content["epoch"]).all())
        assert bool((content["model"]["bias"] == content["epoch"]).all())


DISK_FULL = """
import os, resource, sys, torch
from torch import nn
from retrofit.distributed.checkpoint.full import read_checkpoint
from retrofit.distributed.job.failure import report_failure
from retrofit.distributed import save_checkpoint
path, is_small = sys.argv[1], sys.argv[2] == "small disk"
save_checkpoint(nn.Linear(10, 10), None, 1, path)
if not is_small:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
@report_failure
def main():
    try:
        save_checkpoint(nn.Linear(400, 400), None, 2, path)
    finally:
        print(read_checkpoint(path)["epoch"], os.listdir(os.path.dirname(path)))
main()
"""
# In a mount namespace of its own: nobody else sees the disk, and it is gone with the process.
SMALL_DISK = ("unshare", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=200k none "$0" && exec "$@"')


def test_a_full_disk_keeps_the_old_checkpoint_and_leaves_no_trace(path, tmp_path):
    small_disk = (*SMALL_DISK, str(tmp_path))
    can_mount = shutil.which("unshare") and subprocess.run([*small_disk, "true"], capture_output=True).returncode == 0
    program = [sys.executable, "-c", DISK_FULL, str(path), "small disk" if can_mount else "small files"]
    command = [*(small_disk if can_mount else ()), *program]
    result = subprocess.run(command, env=program_environment(), capture_output=True, text=True)
    why = r"the disk is full, OSError: \[Errno 28\] No space left on device" if can_mount else "OSError: .*too large"
    free = r"0\.\d" if can_mount else r"[\d.]+"
    assert result.returncode == 1 and result.stdout == "1 ['checkpoint.pt']\n", result.stderr
    assert re.fullmatch(
        rf"\nWriteError: could not write checkpoint {path}: {why} \(0\.6 MiB to write, {free} MiB free\); make room or "
        r"choose another folder; the checkpoints already written are unchanged\n",
        result.stderr,
    ), result.stderr


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "checkpoint.pt"
    with pytest.raises(OSError, match=f"could not write checkpoint {target}: .* choose another folder"):
        save_checkpoint(new_model(), None, 0, target)


def test_a_second_name_replaces_the_old_file_in_one_step(tmp_path):
    first, second, best = tmp_path / "1.pt", tmp_path / "2.pt", tmp_path / "best.pt"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    copy_atomically(first, best)
    copy_atomically(second, best)
    assert (first.read_bytes(), best.read_bytes()) == (b"1", b"2")
    second.unlink()
    assert best.read_bytes() == b"2"
    assert files(tmp_path) == ["1.pt", "best.pt"]


# ---- on ranks


def save_and_load(folder):
    torch.manual_seed(0)
    model = DDPWrapper(new_model())
    torch.manual_seed(get_rank())
    optimizer, _ = trained(model)
    save_checkpoint(model, optimizer, 3, Path(folder) / "c.pt", rank_of_writer=get_rank())
    torch.manual_seed(9)
    other = DDPWrapper(new_model())
    content = load_checkpoint(other, torch.optim.Adam(other.parameters()), Path(folder) / "c.pt")
    assert isinstance(other, DDPWrapper)
    assert_same(other.state_dict(), content["model"])
    return content["rank_of_writer"], content["world_size"], list(content["model"])


def test_rank_0_writes_the_state_of_every_rank(ranks, tmp_path):
    names = list(new_model().state_dict())
    assert ranks(2).run(save_and_load, str(tmp_path)) == [(0, 2, names)] * 2
    states = read_checkpoint(tmp_path / "c.pt")["rng_states"]
    assert len(states) == 2 and not torch.equal(states[0]["torch"], states[1]["torch"])
    model = new_model()  # and one process continues with it
    load_checkpoint(model, torch.optim.Adam(model.parameters()), tmp_path / "c.pt")
    assert files(tmp_path) == ["c.pt"]


def save_where_it_cannot(path):
    try:
        save_checkpoint(new_model(), None, 0, path)
    except Exception as error:
        return type(error).__name__, str(error)
    return "none", ""


def test_an_error_while_saving_is_raised_on_every_rank(ranks, tmp_path):
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "checkpoint.pt"
    (first, text), (second, other_text) = ranks(2).run(save_where_it_cannot, str(target))
    assert (first, second) == ("WriteError", "RuntimeError")
    assert f"could not write checkpoint {target}" in text
    assert other_text.startswith("rank 0 failed: ") and str(target) in other_text

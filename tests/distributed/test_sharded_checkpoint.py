"""Sharded checkpoints: every rank writes its part, and they load under any strategy at any number of ranks."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool
from strategy_training import batch_of, new_model, train, with_options

import retrofit.distributed as rd
from retrofit.distributed.checkpoint.checkpoint_files import save_position
from retrofit.distributed.checkpoint.sharded import META_NAME, METADATA_NAME, require_dcp

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
SINGLE, DDP, FSDP = ({"strategy": name} for name in ("single", "ddp", "fsdp"))
pytestmark = pytest.mark.skipif(
    not NEW_TORCH, reason=f"sharded checkpoints need torch 2.6, this is {torch.__version__}; test_old_torch says so"
)


def continued(ckpt: str, load: str, save: str, options: dict[str, Any]) -> dict[str, Any]:
    with with_options(ckpt=ckpt):
        return train(2, load=load, save=save, **options)


@pytest.mark.parametrize(
    "stations",
    [
        [("sharded", 2, DDP), ("sharded", 2, FSDP), ("sharded", 1, SINGLE)],
        [("sharded", 2, FSDP), ("sharded", 3, DDP), ("full", 1, SINGLE)],
        [("sharded", 1, SINGLE), ("sharded", 3, {**FSDP, "wrap_layers": "Block"}), ("full", 2, DDP)],
        [
            ("sharded", 4, {**FSDP, "sharding": "HYBRID_SHARD", "shard_size": 2}),
            ("full", 2, FSDP),
            ("sharded", 3, FSDP),
        ],
    ],
    ids=["ddp2-fsdp2-single", "fsdp2-ddp3-single", "single-fsdp3-ddp2", "hybrid4-full-fsdp3"],
)
def test_a_training_continues_with_other_ranks_and_another_strategy(
    ranks: Any, stations: list[Any], tmp_path: Path
) -> None:
    expected = train(2 * len(stations) + 2)
    losses, path = [], ""
    for number, (ckpt, world_size, options) in enumerate(stations):
        before, path = path, str(tmp_path / f"{number}.{ckpt}")
        losses += ranks(world_size).run(continued, ckpt, before, path, options)[0]["losses"]
    losses += continued("full", path, "", SINGLE)["losses"]
    assert losses == pytest.approx(expected["losses"], rel=1e-5)
    assert sorted(os.listdir(tmp_path)) == sorted(f"{n}.{ckpt}" for n, (ckpt, *_) in enumerate(stations))


def both_kinds(folder: str, options: dict[str, Any]) -> None:
    with with_options(min_num_params=1000.0, **options):
        model = rd.strategies.select.wrap_model(new_model())
    rd.unwrap_model(model).register_buffer("number", torch.tensor([1.0 + rd.get_rank()]))  # as BatchNorm: each its own
    optimizer = torch.optim.AdamW(model.parameters())
    words, _ = batch_of(0)
    model(words).sum().backward()
    optimizer.step()
    for kind in ("sharded", "full"):
        with with_options(ckpt=kind):
            rd.save_checkpoint(
                model, optimizer, 3, f"{folder}/{kind}", extra={"names": ["a"], "size": (3, 4)}, none=None
            )


@pytest.mark.parametrize("options", [DDP, FSDP], ids=["ddp", "fsdp"])
def test_a_sharded_checkpoint_holds_what_a_full_one_holds_and_no_tensor_twice(
    ranks: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    ranks(3).run(both_kinds, str(tmp_path), options)
    sharded, full = (rd.checkpoint.read_checkpoint(tmp_path / kind) for kind in ("sharded", "full"))
    assert_same({**sharded, "rng_states": 0}, {**full, "rng_states": 0})
    assert len(sharded["rng_states"]) == 3 and sharded["world_size"] == 3
    assert sharded["model"]["number"] == 1.0, "rank 0's, as in a full one"
    sizes = [path.stat().st_size for path in sorted((tmp_path / "sharded").glob("*.distcp"))]
    # A tensor of a few KiB costs one KiB more in a file of DCP: the whole may be larger, but every rank has a share.
    assert len(sizes) == 3 and max(sizes) < 0.5 * sum(sizes)


def assert_same(one: Any, other: Any) -> None:
    if isinstance(other, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other)
    elif isinstance(other, dict):
        assert list(one) == list(other)
        for key, value in other.items():
            assert_same(one[key], value)
    else:
        assert one == other


def without_gathering(folder: str) -> int:
    """Save and load where whatever brings a whole tensor together is an error."""
    with with_options(strategy="fsdp", min_num_params=1000.0, ckpt="sharded"):
        model = rd.strategies.select.wrap_model(new_model())
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        model(batch_of(0)[0]).sum().backward()
        optimizer.step()
        before = [parameter.to_local().clone() for parameter in model.parameters()]
        from torch.distributed.tensor import DTensor

        gathers = ["all_gather_into_tensor", "all_gather", "gather", "broadcast", "all_to_all_single", "all_reduce"]
        with (
            mock.patch.object(DTensor, "full_tensor", forbidden),
            mock.patch.object(DTensor, "redistribute", forbidden),
        ):
            for name in gathers:
                mock.patch.object(dist, name, small_only(getattr(dist, name))).start()
            try:
                rd.save_checkpoint(model, optimizer, 1, f"{folder}/sharded")
                for parameter in model.parameters():
                    parameter.data.zero_()
                rd.load_checkpoint(model, optimizer, f"{folder}/sharded")
            finally:
                mock.patch.stopall()
    assert all(torch.equal(value, parameter.to_local()) for value, parameter in zip(before, model.parameters()))
    return sum(value.numel() for value in before)


def forbidden(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("a whole tensor is brought together")


def small_only(collective: Any) -> Any:
    def checked(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            assert not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.numel() < 8
        return collective(*args, **kwargs)

    return checked


def test_a_sharded_model_is_never_gathered(ranks: Any, tmp_path: Path) -> None:
    whole = sum(parameter.numel() for parameter in new_model().parameters())
    assert all(own < 0.6 * whole for own in ranks(2).run(without_gathering, str(tmp_path)))


def save_on_rank_0_alone(path: str) -> str:
    with with_options(strategy="fsdp", min_num_params=1000.0, dist_timeout=3.0, ckpt="sharded"):
        model = rd.strategies.select.wrap_model(new_model())
        if not rd.is_main_process():
            return ""
        with pytest.raises(RuntimeError) as caught:
            rd.save_checkpoint(model, None, 1, path)
    return str(caught.value)


def test_a_save_by_rank_0_alone_ends_and_names_the_others(tmp_path: Path) -> None:
    pool = RankPool(2)  # its group is of no use afterwards
    try:
        message, _ = pool.run(save_on_rank_0_alone, str(tmp_path / "sharded"))
    finally:
        pool.stop()
    assert message.startswith("save_checkpoint was called by rank 0, but not by rank 1 within 3 s; every rank must")
    assert not list(tmp_path.iterdir())


def save_on_a_full_disk(path: str, full_rank: int, asynchronous: bool) -> tuple[str, str]:
    model = rd.strategies.select.wrap_model(torch.nn.Linear(300, 300), "ddp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(1, 300)).sum().backward()
    optimizer.step()
    rd.save_checkpoint(model, optimizer, 1, path, sharded=True, asynchronous=False)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        if rd.get_rank() == full_rank:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        rd.save_checkpoint(model, optimizer, 2, path, sharded=True, asynchronous=asynchronous)
        rd.checkpoint.finish_saves()
    except Exception as error:
        return type(error).__name__, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return "", ""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("full_rank", [0, 1])
def test_a_full_disk_of_one_rank_is_an_error_on_all_and_keeps_the_previous_checkpoint(
    ranks: Any, tmp_path: Path, full_rank: int, asynchronous: bool
) -> None:
    path = tmp_path / "sharded"
    answers = ranks(2).run(save_on_a_full_disk, str(path), full_rank, asynchronous)
    kind, text = answers[full_rank]
    assert kind == "WriteError" and text.startswith(f"could not write checkpoint {path}: ")
    assert "MiB free); make room or choose another folder; the checkpoints already written are unchanged" in text
    assert answers[1 - full_rank][0] == "RuntimeError" and answers[1 - full_rank][1].startswith(
        f"rank {full_rank} failed"
    )
    assert rd.checkpoint.read_checkpoint(path)["epoch"] == 1
    assert os.listdir(tmp_path) == ["sharded"]


# ---- one process: names, damage, foreign content


def save(folder: Path, epoch: int, samples: int, ckpt: str = "sharded", is_best: bool = False) -> Path:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, epoch)
    with with_options(ckpt=ckpt):
        return save_position(folder, epoch, samples, is_best=is_best, model=model, optimizer=None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    first = save(tmp_path, 1, 0, is_best=True)
    for epoch in (2, 3, 4):
        newest = save(tmp_path, epoch, 0)
    assert names(tmp_path) == ["best.dcp"] + [f"checkpoint_000{epoch}_00000000.dcp" for epoch in (1, 3, 4)]
    assert rd.checkpoint.checkpoints_in(tmp_path)[0] == newest and rd.checkpoint.is_newest_checkpoint(newest)
    assert not rd.checkpoint.is_newest_checkpoint(first) and not rd.checkpoint.is_newest_checkpoint(
        tmp_path / "best.dcp"
    )
    for resume in ("auto", str(tmp_path), str(newest)):
        assert rd.checkpoint.find_checkpoint(resume, [tmp_path], to_train=True) == newest
    assert rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=False) == tmp_path / "best.dcp"
    assert rd.checkpoint.read_checkpoint(tmp_path / "best.dcp")["epoch"] == 1
    save(tmp_path, 5, 0, is_best=True)
    assert names(tmp_path) == ["best.dcp"] + [f"checkpoint_000{epoch}_00000000.dcp" for epoch in (4, 5)]


def test_both_kinds_in_one_run(tmp_path: Path) -> None:
    save(tmp_path, 1, 0, is_best=True)
    save(tmp_path, 2, 0, "full", is_best=True)
    assert names(tmp_path) == ["best.pt", "checkpoint_0001_00000000.dcp", "checkpoint_0002_00000000.pt"]
    newest = save(tmp_path, 3, 0, is_best=True)
    assert rd.checkpoint.checkpoints_in(tmp_path) == [newest, tmp_path / "checkpoint_0002_00000000.pt"]
    assert rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=False) == tmp_path / "best.dcp"
    assert not (tmp_path / "best.pt").exists()


def test_an_incomplete_checkpoint_is_ignored_and_removed_by_the_next_save(tmp_path: Path) -> None:
    good = save(tmp_path, 1, 0)
    half = tmp_path / "checkpoint_0002_00000000.dcp"
    half.mkdir()
    (half / "__0_0.distcp").write_bytes(b"half")
    (tmp_path / ".checkpoint_0003_00000000.dcp.tmp").mkdir()
    assert rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=True) == good
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at {half}"):
        rd.checkpoint.read_checkpoint(half)
    newest = save(tmp_path, 2, 0)
    assert newest == half and rd.checkpoint.read_checkpoint(half)["epoch"] == 2
    assert names(tmp_path) == ["checkpoint_0001_00000000.dcp", "checkpoint_0002_00000000.dcp"]


def test_a_checkpoint_is_found_between_the_two_renames(tmp_path: Path) -> None:
    path = tmp_path / "sharded"
    rd.save_checkpoint(torch.nn.Linear(2, 2), None, 1, path, sharded=True)
    path.rename(tmp_path / ".sharded.former")
    assert rd.checkpoint.read_checkpoint(path)["epoch"] == 1


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 0x10
    path.write_bytes(content[:-7] if how == "cut" else content)
    if how == "gone":
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
@pytest.mark.parametrize("name", ["__0_0.distcp", METADATA_NAME, META_NAME])
def test_a_damaged_newest_checkpoint_is_renamed_and_reported(tmp_path: Path, capsys: Any, name: str, how: str) -> None:
    older, newest = save(tmp_path, 1, 0), save(tmp_path, 2, 0)
    damage(newest / name, how)
    if (name, how) == (META_NAME, "gone"):  # not complete
        assert rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=True) == older
        return
    for whole in (True, False):
        with pytest.raises(ValueError, match=rf"checkpoint {newest} is damaged.*use an older one"):
            rd.checkpoint.read_checkpoint(newest, whole=whole)
    assert rd.checkpoint.find_checkpoint("auto", [tmp_path], to_train=True) == older
    assert f"notice: checkpoint {newest} is damaged" in capsys.readouterr().out
    assert newest.with_name(newest.name + ".damaged").is_dir() and rd.checkpoint.is_newest_checkpoint(older)


class RunsCode:
    def __reduce__(self) -> Any:
        return os.mkdir, ("code_was_run",)


def test_no_code_of_a_pickle_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path, 1, 0)
    (path / METADATA_NAME).write_bytes(pickle.dumps(RunsCode()))
    meta = torch.load(path / META_NAME, weights_only=True)
    del meta["files"][METADATA_NAME]  # as somebody would who means it
    torch.save(meta, path / META_NAME)
    for whole in (True, False):
        with pytest.raises(ValueError, match=rf"checkpoint {path} is damaged, or no checkpoint \(.*mkdir"):
            rd.checkpoint.read_checkpoint(path, whole=whole)
    assert names(tmp_path) == [path.name], "the code was run"


def test_the_tools_of_torch_read_a_sharded_checkpoint(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    path = save(tmp_path, 3, 0)
    dcp_to_torch_save(path, tmp_path / "whole.pt")
    tensors = torch.load(tmp_path / "whole.pt")
    assert torch.equal(tensors["model.weight"], torch.full((2, 2), 3.0))


def test_another_model_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    path = save(tmp_path, 1, 0)
    model = torch.nn.Linear(3, 2)
    before = model.weight.detach().clone()
    with pytest.raises(ValueError, match=rf"checkpoint {path} is of another model.*weight is \(2, 2\) there, \(2, 3\)"):
        rd.load_checkpoint(model, None, path)
    assert torch.equal(model.weight, before)


def test_content_that_could_not_be_loaded_again_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"checkpoint {tmp_path / 'c'} is not written: it would hold a"):
        rd.save_checkpoint(torch.nn.Linear(2, 2), None, 1, tmp_path / "c", sharded=True, extra=Path("a"))
    assert not list(tmp_path.iterdir())


def test_an_older_torch_gets_an_error_with_a_remedy() -> None:
    with (
        mock.patch.object(sys.modules["retrofit.distributed.checkpoint.sharded"].torch, "__version__", "2.5.1"),
        pytest.raises(
            RuntimeError, match=r"need torch 2\.6 or newer.*this is 2\.5\.1; update torch, or use --ckpt full"
        ),
    ):
        require_dcp()

"""A checkpoint written in the background is that of the moment of its save, whatever is changed in place meanwhile."""

from __future__ import annotations

import collections
import threading
from pathlib import Path
from typing import Any, Callable
from unittest import mock

import pytest
import torch
from strategy_training import with_options
from torch import nn
from torch.optim.swa_utils import AveragedModel

import retrofit.distributed as rd
from retrofit.distributed.checkpoint import full as checkpoint
from retrofit.distributed.checkpoint.host_copy import host_copy
from retrofit.distributed.checkpoint.sharded_state import map_entries

NEW_TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)


class Position:
    """Anything with a state: it hands out what it holds, as many a dataset, sampler or scaler does."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "epoch": 1,
            "order": [3, 1, 2],
            "window": {"seen": [1, 2], "weights": torch.arange(4.0)},
            "counts": collections.Counter({3: 2, 5: 1}),
            "sorted": collections.OrderedDict(a=[1], b=torch.ones(2)),
            "pair": ([1], torch.zeros(2)),
            "flags": {1, 2},
            "scale": torch.tensor(65536.0),
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state


def new_training(strategy: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 6))
    model[2].weight = model[0].weight  # tied
    average = AveragedModel(model)
    model = rd.strategies.select.wrap_model(model, strategy)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
    return {
        "model": model,
        "optimizer": optimizer,
        "extra": {"ema": average, "scheduler": scheduler, "position": Position()},
        "rng": {"torch": torch.arange(5), "python": [1, 2, (3, [4])]},
    }


def step(training: dict[str, Any]) -> None:
    training["model"](torch.rand(4, 6)).sum().backward()
    training["optimizer"].step()
    training["optimizer"].zero_grad()
    training["extra"]["scheduler"].step()
    with torch.no_grad():
        for number in training["extra"]["ema"].state_dict().values():
            number.add_(1)


def change_everything(value: Any) -> None:
    """Change in place all that a state can hold."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            value.copy_(value + 1)
    elif isinstance(value, dict):
        for entry in value.values():
            change_everything(entry)
        value["changed"] = value.pop(next(iter(value)), 0)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            change_everything(entry)
        if isinstance(value, list):
            value.append("changed")
    elif isinstance(value, set):
        value.add("changed")


def save(training: dict[str, Any], path: str, kind: str, asynchronous: bool) -> None:
    rd.save_checkpoint(
        training["model"],
        training["optimizer"],
        1,
        path,
        rng_state=training["rng"],
        sharded=kind == "sharded",
        asynchronous=asynchronous,
        **training["extra"],
    )


def change_while_it_is_written(folder: str, kind: str, strategy: str) -> None:
    """Write the same state twice: at once to `now`, and to `later` while all of it is changed."""
    with with_options(min_num_params=10.0):
        training = new_training(strategy)
        step(training)
        save(training, f"{folder}/now", kind, False)
        changed = threading.Event()

        def late(write: Callable[..., None]) -> Callable[..., None]:
            def write_late(*args: Any) -> None:
                assert changed.wait(60)
                write(*args)

            return write_late

        names = ("write_part", "write_atomically", "commit")
        with mock.patch.multiple(checkpoint, **{name: late(getattr(checkpoint, name)) for name in names}):
            save(training, f"{folder}/later", kind, True)
            for _ in range(3):
                step(training)
            state = training["optimizer"].state_dict()
            for part in (rd.unwrap_model(training["model"]).state_dict(), state["state"], training["rng"]):
                change_everything(part)
            for part in training["extra"].values():
                change_everything(part.state_dict())
            training["extra"]["scheduler"].milestones.clear()
            changed.set()
            rd.checkpoint.finish_saves()


def assert_equal(one: Any, other: Any, place: str = "") -> None:
    assert type(one) is type(other), place
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and torch.equal(one, other), place
    elif isinstance(one, dict):
        assert list(one) == list(other), place
        for key in one:
            assert_equal(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), place
        for number, (first, second) in enumerate(zip(one, other)):
            assert_equal(first, second, f"{place}.{number}")
    else:
        assert one == other, place


@pytest.mark.parametrize(
    ("kind", "strategy"), [("full", "ddp"), ("full", "fsdp"), ("sharded", "ddp"), ("sharded", "fsdp")]
)
def test_later_changes_in_place_are_not_in_the_checkpoint(ranks: Any, tmp_path: Path, kind: str, strategy: str) -> None:
    if not NEW_TORCH and f"{strategy}/{kind}" != "ddp/full":
        pytest.skip(f"needs torch 2.6, this is {torch.__version__}")
    ranks(2).run(change_while_it_is_written, str(tmp_path), kind, strategy)
    now, later = (rd.checkpoint.read_checkpoint(tmp_path / name) for name in ("now", "later"))
    assert_equal(now, later)
    assert now["scheduler"]["milestones"] == collections.Counter({2: 1, 4: 2})
    assert now["position"]["counts"] == collections.Counter({3: 2, 5: 1})
    assert now["model"]["1.num_batches_tracked"] == 1 and now["optimizer"]["state"][0]["step"] == 1


def test_later_changes_in_place_are_not_in_the_checkpoint_of_one_process(tmp_path: Path) -> None:
    for kind in ("full", "sharded") if NEW_TORCH else ("full",):
        (tmp_path / kind).mkdir()
        change_while_it_is_written(str(tmp_path / kind), kind, "single")
        assert_equal(*(rd.checkpoint.read_checkpoint(tmp_path / kind / name) for name in ("now", "later")))


def test_a_copy_keeps_aliases_and_shares_no_memory() -> None:
    weight = torch.ones(3)
    sparse = torch.eye(3).to_sparse()
    views = torch.arange(10.0)
    state = {"a": weight, "b": [weight, {"c": weight[:]}], "views": (views[:5], views[2:7]), "sparse": sparse}
    copied = host_copy({**state, "default": collections.defaultdict(list, x=[1]), "queue": collections.deque([weight])})
    assert copied["a"] is copied["b"][0] is copied["b"][1]["c"] is copied["queue"][0]
    weight.zero_()
    views.zero_()
    assert copied["a"].tolist() == [1, 1, 1] and copied["views"][1].tolist() == [2, 3, 4, 5, 6]
    assert copied["views"][0].untyped_storage().nbytes() == 5 * 4
    assert torch.equal(copied["sparse"].to_dense(), torch.eye(3)) and copied["default"]["new"] == []


def test_subclasses_of_dict_keep_their_class() -> None:
    for value in (collections.Counter({3: 2}), collections.defaultdict(list, {1: [2]})):
        mapped = map_entries(value, (), lambda entry, path: entry)
        assert mapped == value and type(mapped) is type(value) and mapped is not value
    assert map_entries(collections.defaultdict(list), (), lambda entry, path: entry)["new"] == []


def save_what_cannot_be_pickled(path: str, kind: str, asynchronous: bool) -> str:
    model = nn.Linear(2, 2)
    hook = (lambda: 0) if rd.is_main_process() else None
    try:
        rd.save_checkpoint(model, None, 1, path, sharded=kind == "sharded", asynchronous=asynchronous, hook=hook)
        rd.checkpoint.finish_saves()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("kind", ["full", "sharded"] if NEW_TORCH else ["full"])
def test_an_object_that_cannot_be_copied_is_an_error_on_every_rank(ranks: Any, tmp_path: Path, kind: str) -> None:
    first, second = ranks(2).run(save_what_cannot_be_pickled, str(tmp_path / "c"), kind, True)
    assert (
        first.startswith("ValueError: the checkpoint holds what cannot be pickled (") and "save plain values" in first
    )
    assert second.startswith("RuntimeError: rank 0 failed: ValueError: the checkpoint holds what cannot be pickled")
    first, _ = ranks(2).run(save_what_cannot_be_pickled, str(tmp_path / "c"), kind, False)
    assert "pickle" in first and not any(path.is_file() for path in tmp_path.rglob("*"))

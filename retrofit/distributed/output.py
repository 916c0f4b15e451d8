"""Output of one rank for all: prints, files, writers, trackers, answers, preparations."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .collective_calls import Answer, Turn, collective, current_turn, failure_on_main, taking
from .collectives import broadcast_object, raise_together
from .process_group import barrier, control_group, get_local_rank, get_world_size, is_distributed, is_main_process

__all__ = [
    "SilentObject",
    "answer_of_main",
    "main_process_first",
    "on_main_process",
    "path_on_main",
    "print_main",
    "quiet_logging",
    "start_tracker",
]


def print_main(*values: Any, **options: Any) -> None:
    """Print on rank 0; the other ranks stay silent. Takes what `print` takes."""
    if is_main_process():
        print(*values, **options)


def on_main_process(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `factory(*args, **kwargs)` on rank 0 and a `SilentObject` on the others.

    For what must exist once: `writer = on_main_process(SummaryWriter, logdir)`.
    """
    return factory(*args, **kwargs) if is_main_process() else SilentObject()


def path_on_main(path: Any) -> Any:
    """Return `path` on rank 0 and the null device on the others: `open(path_on_main("log.csv"), "a")`.

    A pathlib.Path stays one: `path_on_main(folder / "log.csv").open("a")`.
    """
    if is_main_process():
        return path
    return Path(os.devnull) if isinstance(path, Path) else os.devnull


def answer_of_main(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `function(*args, **kwargs)` gives on rank 0, on every rank; the others do not call it.

    For what the ranks would answer in different ways: whether a folder is there that rank 0 is about to make, what
    the user types. Collective: every rank. Raises on rank 0 what the function raises, RuntimeError on the others.
    Inside `with main_process_first():` the others get the answers later, in their turn.
    """
    turn = current_turn()
    if turn is not None:
        return turn.answer(function, *args, **kwargs)
    if not is_distributed():
        return function(*args, **kwargs)
    answer, error = None, None
    if is_main_process():
        try:
            answer = function(*args, **kwargs)
        except Exception as raised:
            error = raised
    failure = failure_on_main(function, error) if error is not None else ""
    answer, failure = broadcast_object((answer, failure))
    if error is not None:
        raise error
    if failure:
        raise RuntimeError(failure)
    return answer


def quiet_logging() -> None:
    """Leave ranks other than 0 their warnings and errors only, of all that goes through the logging module."""
    if not is_main_process():
        logging.disable(logging.INFO)


class SilentObject:
    """Takes every method call, also of its attributes, and does nothing; falsy: `if writer:` guards preparation.

    As a path, `os.path.join(writer.log_dir, "best.pt")`, it lies under the null device, where no file can be.
    """

    def __getattr__(self, name: str) -> SilentObject:
        if name.startswith("__"):
            raise AttributeError(name)
        return SilentObject()

    def __getitem__(self, key: Any) -> SilentObject:
        return SilentObject()

    def __setitem__(self, key: Any, value: Any) -> None:
        pass

    __iter__ = None  # it has no elements, which indexing alone would not say

    def __call__(self, *args: Any, **kwargs: Any) -> SilentObject:
        return SilentObject()

    def __fspath__(self) -> str:
        return os.devnull

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> SilentObject:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None


# What a script reads from a run to name files and folders, and cannot be told when the run is started.
FACTS = ("name", "id", "dir", "path", "project", "entity", "group", "url", "sweep_id")


def start_tracker(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `start(*args, **kwargs)` on rank 0 and a run that records nothing on the others.

    `run = start_tracker(wandb.init, project="a")`. The others have `mode="disabled"` of wandb and swanlab, `"debug"` of
    neptune, `disabled=True` of comet_ml, offline mode of clearml, and a `SilentObject` of every other tool. A disabled
    run of wandb has the configuration of rank 0's, which a sweep may have decided about, its name, its id and its
    folder. Collective: every rank. Raises what `start` raises on rank 0, on the others a RuntimeError that says so.
    """
    if not is_distributed():
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise RuntimeError(
                f"start_tracker was called before the process group exists, in one of {os.environ['WORLD_SIZE']} "
                "processes, which would each start a run; call setup_distributed() before it"
            )
        return start(*args, **kwargs)
    run = error = None
    if is_main_process():
        try:
            run = start(*args, **kwargs)
        except Exception as raised:
            error = raised
    raise_together(error)
    told = broadcast_object(_told(run) if is_main_process() else None)
    return run if is_main_process() else _disabled(start, args, kwargs, told)


def _told(run: Any) -> dict[str, Any]:
    """Return what the other ranks are to know about a run: the texts and numbers among FACTS, and the configuration."""
    facts: dict[str, Any] = {}
    for name in FACTS:
        try:
            value = getattr(run, name, SilentObject)
        except Exception:  # some can only be read from a run that is online
            continue
        if value is None or isinstance(value, (str, int)):
            facts[name] = value
    try:
        config = dict(run.config)
    except Exception:
        config = None
    return {"facts": facts, "config": config}


def _disabled(start: Callable[..., Any], args: Any, kwargs: dict[str, Any], told: Any) -> Any:
    tool = str(getattr(start, "__module__", "")).partition(".")[0]
    if tool in ("wandb", "swanlab"):
        left_out = ("resume", "config_include_keys", "config_exclude_keys")
        given = {name: value for name, value in kwargs.items() if name not in left_out}
        if told["config"] is not None:
            given["config"] = told["config"]
        given.update({name: told["facts"][name] for name in ("name", "id") if told["facts"].get(name)})
        return _with_facts(start(*args, **{**given, "mode": "disabled"}), told["facts"])
    if tool == "neptune":
        return start(*args, **{**kwargs, "mode": "debug"})
    if tool == "comet_ml" and isinstance(start, type):
        return start(*args, **{**kwargs, "disabled": True})
    owner: Any = getattr(start, "__self__", None)
    if tool in ("clearml", "trains") and hasattr(owner, "set_offline"):
        owner.set_offline(True)
        return start(*args, **kwargs)
    return SilentObject()


def _with_facts(run: Any, facts: dict[str, Any]) -> Any:
    """Return a disabled run that says of itself what rank 0's says: its class makes up a name and a folder."""
    different = {name: value for name, value in facts.items() if getattr(run, name, None) != value}
    if different:
        known = dict(different)
        members = {name: property(_reading(known, name), _writing(known, name)) for name in different}
        run.__class__ = type(type(run).__name__, (type(run),), members)
    return run


def _reading(known: dict[str, Any], name: str) -> Callable[[Any], Any]:
    return lambda run: known[name]


def _writing(known: dict[str, Any], name: str) -> Callable[[Any, Any], None]:
    return lambda run, value: known.__setitem__(name, value)


@contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block on rank 0 first, then on one process of each other node, then on the rest (a download, a cache).

    That serves a disk which all nodes share and disks of their own. Collective: every rank. An error in the block
    lets the next ranks continue. Collectives in the block raise RuntimeError.
    """
    if current_turn() is not None or get_world_size() == 1:  # in such a block already, or alone
        yield
        return
    number = 0 if is_main_process() else 1 if get_local_rank() == 0 else 2
    turn = Turn(_answers_of_main([]) if number else [], is_of_main=number == 0)
    if number == 2:
        barrier()
    try:
        with taking(turn):
            yield
    finally:
        if number == 0:
            _answers_of_main(turn.answers)
        if number < 2:
            barrier()


@collective
def _answers_of_main(answers: list[Answer]) -> list[Answer]:
    """Return rank 0's `answers` on every rank: the others wait here for its turn to end."""
    box = [answers]
    dist.broadcast_object_list(box, src=0, group=control_group())
    return box[0]

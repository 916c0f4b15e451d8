"""Output of one rank for all: prints, files, writers, trackers, answers, preparations."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from .collectives import broadcast_object, raise_together
from .data.random_state import share_random_state
from .failure.collective_calls import turns
from .failure.shown_figures import note_shown, note_tracked, watch_tracking
from .process.process_group import (
    barrier,
    get_local_rank,
    get_world_size,
    is_distributed,
    is_main_process,
    require_group,
)

__all__ = [
    "SilentObject",
    "answer_of_main",
    "main_process_first",
    "on_main_process",
    "path_on_main",
    "print_main",
    "quiet_logging",
    "share_hydra_run",
    "start_tracker",
]

HANDLE = logging.Logger.handle


def print_main(*values: Any, **options: Any) -> None:
    """Print on rank 0; the other ranks stay silent. Takes what `print` takes."""
    note_shown(*values)
    if is_main_process():
        print(*values, **options)


def on_main_process(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `factory(*args, **kwargs)`, of which one must exist, on rank 0 and a `SilentObject` on the others."""
    note_tracked(getattr(factory, "__name__", ""), args, kwargs)
    return watch_tracking(factory(*args, **kwargs)) if is_main_process() else SilentObject()


def path_on_main(path: Any) -> Any:
    """Return `path` on rank 0 and the null device on the others: `open(path_on_main("log.csv"), "a")`.

    A pathlib.Path stays one: `path_on_main(folder / "log.csv").open("a")`.
    """
    nowhere = Path(os.devnull) if isinstance(path, Path) else os.devnull
    return path if is_main_process() else nowhere


def quiet_logging() -> None:
    """Leave ranks other than 0 their warnings and errors only, of all that goes through the logging module.

    What goes through loguru's logger, where the script has imported that, is rank 0's alone.
    """
    if get_world_size() > 1 and logging.Logger.handle is HANDLE:
        logging.Logger.handle = _handle_of_main  # type: ignore[method-assign, assignment]
    if not is_main_process() and "loguru" in sys.modules:
        sys.modules["loguru"].logger.disable("")  # of all modules; a file that it adds stays empty


def _handle_of_main(logger: logging.Logger, record: logging.LogRecord) -> None:
    note_shown(record.getMessage(), place=f"{record.pathname}:{record.lineno}")
    if is_main_process() or record.levelno > logging.INFO:
        HANDLE(logger, record)


def share_hydra_run() -> None:
    """Let Hydra name the folder of a run by rank 0's time, and rank 0 alone write to it. Collective: every rank."""
    now = datetime.fromtimestamp(broadcast_object(time.time()))
    if not is_distributed():
        return
    settings = import_module("omegaconf").OmegaConf
    register = settings.register_new_resolver

    def register_shared(name: str, resolver: Callable[..., Any], **options: Any) -> None:
        register(name, now.strftime if name == "now" else resolver, **options)  # ${now:%Y-%m-%d}

    settings.register_new_resolver = register_shared
    if not is_main_process():  # .hydra/config.yaml; the log file
        nothing = dict.fromkeys(["_save_config", "configure_log"], lambda *given: None)
        vars(import_module("hydra.core.utils")).update(nothing)


class SilentObject:
    """Takes every method call, also of its attributes, and does nothing; falsy: `if writer:` guards preparation.

    As a path, `os.path.join(writer.log_dir, "best.pt")`, it is below the null device, where no file can be.
    """

    __iter__ = None  # it has no elements, which indexing alone would not say

    def __init__(self, name: str = "") -> None:
        self._name = name  # as which attribute of another one it was asked for

    def __getattr__(self, name: str) -> SilentObject:
        if name.startswith("__"):
            raise AttributeError(name)
        return SilentObject(name)

    def __call__(self, *args: Any, **kwargs: Any) -> SilentObject:
        note_tracked(self._name, args, kwargs)
        return SilentObject()

    __getitem__ = __setitem__ = __exit__ = __call__  # an exception passes: the result is falsy

    def __fspath__(self) -> str:
        return os.devnull

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> SilentObject:
        return self


def answer_of_main(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what `function(*args, **kwargs)` gives on rank 0, on every rank; the others do not call it.

    For what they would answer in different ways: whether a folder is there that rank 0 is about to make. Collective:
    every rank. Raises on rank 0 what the function raises, RuntimeError on the others. Inside `main_process_first()`
    they get the answer in their turn, and call the function where rank 0 did not ask the same.
    """
    turn = turns[-1] if turns else None  # rank 0's answers, by question
    name = getattr(function, "__qualname__", repr(function))
    question = "" if turn is None else f"{getattr(function, '__module__', '')}.{name}{args!r}{sorted(kwargs.items())!r}"
    answers = [] if turn is None else turn.setdefault(question, [])
    if turn is not None and not answers and not is_main_process():
        return function(*args, **kwargs)
    value, error = _call_on_main(function, args, kwargs)
    failure = "" if error is None else f"{name.rpartition('.')[2]} failed on rank 0: {type(error).__name__}: {error}"
    if turn is None:
        value, failure = broadcast_object((value, failure))
    elif is_main_process():
        answers.append((value, failure))
    else:
        value, failure = answers.pop(0)
    if failure:
        raise RuntimeError(failure) if error is None else error
    return value


def _call_on_main(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Exception | None]:
    """Return what the call gives on rank 0, and its error; the others do not call, unless there is no group."""
    try:
        return function(*args, **kwargs) if is_main_process() or not is_distributed() else None, None
    except Exception as error:
        return None, error


@contextmanager
def main_process_first(share_draws: bool = False) -> Iterator[None]:
    """Run the block on rank 0 first, then on one process of each other node, then on the rest (a download, a cache).

    That serves a disk which all nodes share and disks of their own. Collective: every rank. An error in the block
    lets the next ranks continue. Collectives in the block raise RuntimeError. With `share_draws` all ranks continue
    with rank 0's random numbers: for a block that draws some only where a file is missing.
    """
    if turns or get_world_size() == 1:  # in such a block already, or alone
        yield
        return
    number = 0 if is_main_process() else 1 if get_local_rank() == 0 else 2
    answers: Any = broadcast_object({}) if number else {}  # the others wait here for rank 0's turn to end
    if number == 2:
        barrier()
    turns.append(answers)
    try:
        yield
    finally:
        turns.clear()
        if number == 0:
            broadcast_object(answers)
        if number < 2:
            barrier()
    if share_draws:
        share_random_state()


# What a script reads from a run to name files and folders, and cannot be told when the run is started.
RUN_FACTS = ("name", "id", "dir", "path", "project", "entity", "group", "url", "sweep_id")


def start_tracker(start: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `start(*args, **kwargs)` on rank 0 and a run that records nothing on the others.

    `run = start_tracker(wandb.init, project="a")`. The others have a disabled run of wandb and swanlab with rank 0's
    configuration, name, id and folder, a disabled one of neptune, comet_ml and clearml, and a `SilentObject` of every
    other tool. Collective: every rank. Raises what `start` raises on rank 0, on the others a RuntimeError that says so.
    """
    require_group("start_tracker")
    if not is_distributed():
        return start(*args, **kwargs)
    run, error = _call_on_main(start, args, kwargs)
    raise_together(error)
    facts = broadcast_object(_facts_of(run))
    run = run if is_main_process() else _start_disabled(start, args, kwargs, facts)
    watch_tracking(sys.modules.get(str(getattr(start, "__module__", "")).partition(".")[0]))  # wandb.log(...)
    return watch_tracking(run)


def _facts_of(run: Any) -> dict[str, Any]:
    """Return what the other ranks are to know of a run: the texts and numbers of RUN_FACTS, and its configuration."""
    facts: dict[str, Any] = {}
    for name in RUN_FACTS:
        with suppress(Exception):  # some can only be read from a run that is online
            facts[name] = getattr(run, name)
    facts = {name: value for name, value in facts.items() if value is None or isinstance(value, (str, int))}
    with suppress(Exception):
        facts["config"] = dict(run.config)
    return facts


def _start_disabled(start: Callable[..., Any], args: Any, kwargs: dict[str, Any], facts: dict[str, Any]) -> Any:
    tool: str = str(getattr(start, "__module__", "")).partition(".")[0]
    owner: Any = getattr(start, "__self__", None)
    if tool in ("wandb", "swanlab"):
        left_out = ("resume", "config_include_keys", "config_exclude_keys")
        given = {name: value for name, value in kwargs.items() if name not in left_out}
        given.update({name: facts[name] for name in ("config", "name", "id") if facts.get(name) not in (None, "")})
        facts.pop("config", None)
        return _with_facts(start(*args, **{**given, "mode": "disabled"}), facts)
    if tool == "neptune":
        return start(*args, **{**kwargs, "mode": "debug"})
    if tool == "comet_ml" and isinstance(start, type):
        return start(*args, **{**kwargs, "disabled": True})
    if tool in ("clearml", "trains") and hasattr(owner, "set_offline"):
        owner.set_offline(True)
        return start(*args, **kwargs)
    return SilentObject()


def _with_facts(run: Any, facts: dict[str, Any]) -> Any:
    """Return a disabled run that says of itself what rank 0's says: its class makes up a name and a folder."""
    members = {name: value for name, value in facts.items() if getattr(run, name, None) != value}
    if members:
        run.__class__ = type(type(run).__name__, (type(run),), members)
    return run

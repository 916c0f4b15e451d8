"""Output from one rank only: prints, writers and other objects that must exist once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .collective_calls import current_turn, failure_on_main
from .process_group import is_distributed, is_main_process
from .reduce import broadcast_object


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

"""Generators of the script's own, of Python and of numpy, in the streams of the batch in hand.

`random.Random(seed)`, `numpy.random.default_rng(seed)` and `RandomState(seed)` continue from batch to batch, and a rank
draws less from them than one process does. In a batch they draw from streams of the batch, as the process's own do
(see `Streams`), and afterwards continue where they were.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any

from retrofit.verify.trace.after_import import after_import

from .draws import RowDraws
from .generators import is_generator
from .numpy_draws import by_rows
from .streams import Streams

OF_PYTHON = ("random", "getrandbits")  # by which all others draw
_NO_DRAWS = ("get_state", "set_state", "seed", "spawn", "bit_generator")


def install_own_generators(streams: Streams, draws: RowDraws) -> None:
    """Watch the generators that are used from here on, and those of numpy that are made."""
    for name in OF_PYTHON:
        setattr(random.Random, name, _in_batch(streams, draws, getattr(random.Random, name)))
    after_import("numpy.random", functools.partial(_watch_numpy, streams, draws))


def _in_batch(streams: Streams, draws: RowDraws, draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(generator: Any, *args: Any, **kwargs: Any) -> Any:
        if streams.in_batch() and is_generator(generator) and not _is_of_library(sys._getframe(1)):
            before = streams.enter_generator(generator)
            draws.count(draw.__name__, "generator", lambda: before)
        return draw(generator, *args, **kwargs)

    return drawn


def _is_of_library(frame: FrameType | None) -> bool:
    """Return whether Python's own library draws for itself, as tempfile does."""
    while frame is not None and frame.f_code.co_filename == random.__file__:
        frame = frame.f_back
    return frame is not None and os.path.dirname(frame.f_code.co_filename) == os.path.dirname(random.__file__)


def _watch_numpy(streams: Streams, draws: RowDraws, module: ModuleType) -> None:
    generator, make = _watched_kind(module.Generator, streams, draws), module.default_rng

    @functools.wraps(make)
    def default_rng(seed: Any = None) -> Any:
        made = make(seed)
        return made if made is seed else generator(made.bit_generator)

    module.Generator, module.default_rng = generator, default_rng  # type: ignore[attr-defined]
    module.RandomState = _watched_kind(module.RandomState, streams, draws)  # type: ignore[attr-defined]


def _watched_kind(kind: type, streams: Streams, draws: RowDraws) -> type:
    """Return a subclass whose draws are those of the batch in hand; of it are all that are of `kind`."""

    class OfKind(type):
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, kind)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, kind)

    methods = {
        name: _method(streams, draws, name, method)
        for name, method in vars(kind).items()
        if not name.startswith("_") and name not in _NO_DRAWS and callable(method)
    }
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return OfKind(kind.__name__, (kind,), {**methods, **names})


def _method(streams: Streams, draws: RowDraws, name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(generator: Any, *args: Any, **kwargs: Any) -> Any:
        before = streams.enter_generator(generator)
        by = by_rows(draws, generator, name, functools.partial(draw, generator), lambda: before)
        return by(*args, **kwargs)

    return drawn

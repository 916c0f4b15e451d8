"""Draws of numpy.random row by row: noise for a batch depends on the sample, as that of torch does (see `draws`)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from retrofit.distributed.data.random_state import get_rng_state, mix_seed
from retrofit.verify.trace.after_import import after_import

from .draws import RowDraws
from .generators import reseed, restore, state_of

# Functions of numpy.random, with the place of `size` among their arguments.
SIZE_AT = {
    **dict.fromkeys(("random", "random_sample", "ranf", "sample", "standard_cauchy", "standard_exponential"), 0),
    "standard_normal": 0,
    **dict.fromkeys(("exponential", "poisson", "rayleigh", "standard_gamma", "geometric", "standard_t"), 1),
    **dict.fromkeys(("normal", "uniform", "laplace", "gumbel", "logistic", "lognormal", "beta", "gamma"), 2),
    **dict.fromkeys(("binomial", "randint", "integers"), 2),
}
PICKS = ("permutation", "permuted", "shuffle", "choice")  # which may be of the rows of the batch
BY_LENGTHS = ("rand", "randn")  # which are given the lengths themselves


def install_numpy_draws(draws: RowDraws) -> None:
    """Draw the rows of a batch from streams of their own, once numpy is imported."""
    after_import("numpy.random", functools.partial(_wrap, draws))


def _wrap(draws: RowDraws, module: ModuleType) -> None:
    for name in (*SIZE_AT, *BY_LENGTHS, *PICKS):
        if hasattr(module, name):
            setattr(module, name, by_rows(draws, module, name, getattr(module, name), lambda: _own_state(draws)))


def _own_state(draws: RowDraws) -> str | None:
    return draws.own_state("numpy", get_rng_state()["numpy"])


def by_rows(
    draws: RowDraws, source: Any, name: str, draw: Callable[..., Any], own_state: Callable[[], str | None]
) -> Callable[..., Any]:
    """Return a function of numpy.random, or of a generator (`source`), that draws for each row from its own stream."""
    stream = "numpy" if isinstance(source, ModuleType) else "generator"

    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        if name not in (*SIZE_AT, *BY_LENGTHS, *PICKS):  # a distribution over several numbers, or a rare one
            draws.count(name, stream, own_state)
            return draw(*args, **kwargs)
        if name in PICKS:
            draws.note_number(name, stream, own_state)
            return _picked(draws, source, name, draw, args, kwargs)
        shape = _shape(name, args, kwargs)
        place = None if shape is None else draws.place_of(name, shape, args, own_state)
        if shape is None or place is None:
            draws.count(name, stream, own_state)
            return draw(*args, **kwargs)
        own = [place.num_entries if dim == place.dim else length for dim, length in enumerate(shape)]
        with _put_back(source):
            result, keys = draw(*args, **kwargs), draws.keys()
            for row, seed in enumerate(rows := draws.rows()):
                reseed(source, mix_seed(seed, keys[row]))
                entries = place.entries_of(row, len(rows), torch.device("cpu")).numpy()
                part = draw(*own) if name in BY_LENGTHS else _with_size(name, draw, args, kwargs, own)
                result[(slice(None),) * place.dim + (entries,)] = part
        return result

    return drawn


def _picked(
    draws: RowDraws, source: Any, name: str, draw: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return a permutation or a choice; of the rows of the batch, one among the rows of each rank, if that is all."""
    rows = draws.rows()
    among = args[0] if args else None
    length = _length(among)
    if len(rows) < 2 or length != len(rows) or draws.may_pick():
        return draw(*args, **kwargs)
    if name != "permutation" or not isinstance(among, int) or kwargs:
        draws.report(name, [length])
        return draw(*args, **kwargs)
    with _put_back(source):
        result, keys = draw(*args), draws.keys()
        for part in filter(None, draws.parts()):
            reseed(source, mix_seed(keys[part[0]], *(rows[row] for row in part)))
            result[part] = [part[place] for place in draw(len(part))]
    return result


def _length(among: Any) -> int:
    """Return of how many things one is picked: of so many numbers, or of a sequence."""
    try:
        return operator.index(among)
    except TypeError:
        return len(among) if hasattr(among, "__len__") else 0


@contextmanager
def _put_back(source: Any) -> Iterator[None]:
    state = state_of(source)
    try:
        yield
    finally:
        restore(source, state)


def _shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """Return the lengths of what is drawn, None for one number and where the other arguments have lengths, too."""
    if name in BY_LENGTHS:
        return _lengths(args)
    size = kwargs.get("size", args[SIZE_AT[name]] if len(args) > SIZE_AT[name] else None)
    others = [*args[: SIZE_AT[name]], *(value for key, value in kwargs.items() if key not in ("size", "dtype"))]
    if size is None or any(getattr(other, "shape", ()) or isinstance(other, (list, tuple)) for other in others):
        return None
    return _lengths(size if hasattr(size, "__iter__") else [size])


def _lengths(sizes: Iterable[Any]) -> list[int] | None:
    """Return these lengths as whole numbers; None where nothing is drawn, and for what numpy shall refuse itself."""
    try:
        shape = [operator.index(length) for length in sizes]
    except TypeError:
        return None
    return shape if shape and all(length > 0 for length in shape) else None


def _with_size(
    name: str, draw: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], size: list[int]
) -> Any:
    if "size" in kwargs:
        return draw(*args, **{**kwargs, "size": size})
    return draw(*args[: SIZE_AT[name]], size, *args[SIZE_AT[name] + 1 :], **kwargs)

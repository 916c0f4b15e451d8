"""Draws of numpy.random row by row: noise for a batch depends on the sample, as that of torch does (see `draws`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from retrofit.distributed.data.random_state import mix_seed
from retrofit.verify.trace.after_import import after_import

from .draws import RowDraws

# Functions of numpy.random, with the place of `size` among their arguments.
SIZE_AT = {
    **dict.fromkeys(("random", "random_sample", "ranf", "sample", "standard_cauchy", "standard_exponential"), 0),
    "standard_normal": 0,
    **dict.fromkeys(("exponential", "poisson", "rayleigh", "standard_gamma", "geometric", "standard_t"), 1),
    **dict.fromkeys(("normal", "uniform", "laplace", "gumbel", "logistic", "lognormal", "beta", "gamma"), 2),
    **dict.fromkeys(("binomial", "randint"), 2),
}
BY_LENGTHS = ("rand", "randn")  # which are given the lengths themselves


def install_numpy_draws(draws: RowDraws) -> None:
    """Draw the rows of a batch from streams of their own, once numpy is imported. A generator of the script's stays."""
    after_import("numpy.random", functools.partial(_wrap, draws))


def _wrap(draws: RowDraws, module: ModuleType) -> None:
    for name in (*SIZE_AT, *BY_LENGTHS):
        if hasattr(module, name):
            setattr(module, name, _by_rows(draws, module, name, getattr(module, name)))


def _by_rows(draws: RowDraws, module: ModuleType, name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(draw)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        shape = _shape(name, args, kwargs)
        place = None if shape is None else draws.place_of(name, shape, args)
        if shape is None or place is None:
            return draw(*args, **kwargs)
        state, keys = module.get_state(), draws.keys()
        own = [place.num_entries if dim == place.dim else length for dim, length in enumerate(shape)]
        try:
            result = draw(*args, **kwargs)
            for row, seed in enumerate(rows := draws.rows()):
                module.seed(mix_seed(seed, keys[row]) % 2**32)
                entries = place.entries_of(row, len(rows), torch.device("cpu")).numpy()
                part = draw(*own) if name in BY_LENGTHS else _with_size(name, draw, args, kwargs, own)
                result[(slice(None),) * place.dim + (entries,)] = part
            return result
        finally:
            module.set_state(state)

    return drawn


def _shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int] | None:
    """Return the lengths of what is drawn, None for one number and where the other arguments have lengths, too."""
    if name in BY_LENGTHS:
        return [int(length) for length in args] or None
    size = kwargs.get("size", args[SIZE_AT[name]] if len(args) > SIZE_AT[name] else None)
    others = [*args[: SIZE_AT[name]], *(value for key, value in kwargs.items() if key not in ("size", "dtype"))]
    if size is None or any(getattr(other, "shape", ()) or isinstance(other, (list, tuple)) for other in others):
        return None
    shape = [int(length) for length in (size if isinstance(size, (list, tuple)) else [size])]
    return shape if shape and all(shape) else None


def _with_size(
    name: str, draw: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], size: list[int]
) -> Any:
    if "size" in kwargs:
        return draw(*args, **{**kwargs, "size": size})
    return draw(*args[: SIZE_AT[name]], size, *args[SIZE_AT[name] + 1 :], **kwargs)

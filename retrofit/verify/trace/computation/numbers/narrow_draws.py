"""Random numbers outside of a batch, drawn in float32 as the script draws them, and widened.

float64 takes other bits of a stream: data and weights that a script makes from a seed would be other ones than in its
own run, and a selection by their values would have another length.
"""

from __future__ import annotations

from typing import Any

import torch

_IN_PLACE = {"normal_", "uniform_", "exponential_", "log_normal_", "cauchy_", "geometric_"}
_MAKING = {"rand", "randn", "rand_like", "randn_like"}


def drawn_in_float32(func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """Run an operator that draws; `name` is its own. A draw that asks for a type by itself is left as it is."""
    if torch.get_default_dtype() is not torch.float64:  # nothing is widened in this run
        return func(*args, **kwargs)
    if name in _IN_PLACE and args[0].dtype is torch.float64 and args[0].numel():
        narrow = torch.empty_like(args[0], dtype=torch.float32)
        func(narrow, *args[1:], **kwargs)
        args[0].copy_(narrow)
        return args[0]
    if name in _MAKING and kwargs.get("dtype") is None and "out" not in kwargs:
        wide = args[0].dtype if name.endswith("_like") else torch.float64
        if wide is torch.float64:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
    return func(*args, **kwargs)

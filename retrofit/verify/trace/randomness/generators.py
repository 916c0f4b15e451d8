"""Random generators that a script makes itself: of torch, of numpy and of Python."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from typing import Any

import torch


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator, but not one of the process's own streams."""
    numpy = sys.modules.get("numpy")
    kinds = (torch.Generator, random.Random, *((numpy.random.Generator, numpy.random.RandomState) if numpy else ()))
    return isinstance(value, kinds) and value is not getattr(random, "_inst", None)


def state_of(generator: Any) -> Any:
    """Return the state of a generator, or of the module numpy.random."""
    if isinstance(generator, torch.Generator):
        return generator.get_state().tolist()
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.get_state() if hasattr(generator, "get_state") else generator.bit_generator.state


def reseed(generator: Any, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif hasattr(generator, "seed"):
        generator.seed(seed if isinstance(generator, random.Random) else seed % 2**32)
    else:
        generator.bit_generator.state = type(generator.bit_generator)(seed).state


def restore(generator: Any, state: Any) -> None:
    with suppress(NotImplementedError):  # random.SystemRandom has none
        if isinstance(generator, torch.Generator):
            generator.set_state(torch.tensor(state, dtype=torch.uint8))
        elif isinstance(generator, random.Random):
            generator.setstate(state)
        elif hasattr(generator, "set_state"):
            generator.set_state(state)
        else:
            generator.bit_generator.state = state

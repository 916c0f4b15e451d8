"""Contents of an object that is saved: the name, the type and the value of each of its leaves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import torch
from torch import nn

from retrofit.verify.trace.computation.fingerprint import norm_and_projection
from retrofit.verify.trace.computation.operators import untraced
from retrofit.verify.trace.events import RANDOM_STATE, Keys, Value, Values

MOST_LEAVES = 2000
MOST_PLAIN_ITEMS = 100  # longer lists without tensors or containers are described as one leaf
MOST_LEVELS = 50
MOST_CHARACTERS = 200  # of a text that is kept; of a longer one a hash
STATE_SIZES = (5056, 16)  # bytes of torch's random state, on the CPU and on a GPU


def describe(obj: Any) -> Keys:
    """Return what is in `obj`: a flat name like "model/fc.weight" and "float32[10, 3]" or a type name of each leaf.

    Names of dict entries and numbers of list items are joined with "/". A module is a leaf "module:Net", followed by
    its parameters and buffers as if it were a dict. At most MOST_LEAVES leaves, and one "..." if there are more.
    """
    return _with_mark({name: _kind(leaf) for name, leaf in islice(_leaves("", obj, 0), MOST_LEAVES + 1)}, "more")


def values_of(obj: Any) -> Values:
    """Return by the same names what can be compared: numbers, texts, fingerprints of tensors, None for other things.

    A random state is one entry, whatever it is made of.
    """
    found: Values = {}
    with untraced(), torch.no_grad():
        for name, leaf in islice(_leaves("", obj, 0, whole=_is_random_state), MOST_LEAVES + 1):
            found[name] = None
            with suppress(Exception):  # of what a library has made of a tensor
                found[name] = value_of(leaf)
    return _with_mark(found, None)


def value_of(leaf: Any) -> Value:
    """Return a number or a text, the fingerprint of a tensor, a hash of what is long; None for other things."""
    if _is_random_state(leaf):
        return RANDOM_STATE + _hash(repr(_plain_state(leaf)))
    if hasattr(leaf, "dtype") and hasattr(leaf, "item") and getattr(leaf, "shape", None) == () and not _is_tensor(leaf):
        leaf = leaf.item()  # of NumPy
    if leaf is None or isinstance(leaf, (bool, int, float)):
        return leaf
    if isinstance(leaf, str):
        return leaf if len(leaf) <= MOST_CHARACTERS else _hash(leaf)
    if isinstance(leaf, (list, tuple)):
        return _hash(repr(leaf)) if all(isinstance(item, (bool, int, float, str)) for item in leaf) else None
    if hasattr(leaf, "__array_interface__") and leaf.dtype.kind in "biuf":
        leaf = torch.from_numpy(leaf.copy())
    local = getattr(leaf, "to_local", None)  # of a tensor of which each rank holds a part
    leaf = leaf if local is None else local()
    if not _is_tensor(leaf) or leaf.is_sparse or leaf.device.type == "meta":
        return None
    return norm_and_projection(leaf)


def _leaves(name: str, obj: Any, level: int, whole: Any = None) -> Iterator[tuple[str, Any]]:
    """Yield what is not made of anything else, and modules before what they hold. `whole(obj)`: not to be opened."""
    children: list[tuple[Any, Any]] = []
    if level < MOST_LEVELS and not (whole is not None and whole(obj)):
        if isinstance(obj, nn.Module):
            yield name, obj
            # Not its state_dict, which wrappers of several ranks can only make together.
            children = [*obj.named_parameters(), *obj.named_buffers()]
        elif isinstance(obj, Mapping):
            children = list(obj.items())
        elif isinstance(obj, (list, tuple)) and not _is_long_and_plain(obj):
            children = list(enumerate(obj))
    if not children and not (level < MOST_LEVELS and isinstance(obj, nn.Module)):
        yield name, obj
    for key, child in children:
        yield from _leaves(f"{name}/{key}" if name else str(key), child, level + 1, whole)


def _with_mark(found: dict[str, Any], mark: Any) -> dict[str, Any]:
    """Return at most MOST_LEAVES entries, and one "..." if there were more."""
    if len(found) <= MOST_LEAVES:
        return found
    return {**dict(islice(found.items(), MOST_LEAVES)), "...": mark}


def _is_long_and_plain(items: Any) -> bool:
    containers = (torch.Tensor, nn.Module, Mapping, list, tuple)
    return len(items) > MOST_PLAIN_ITEMS and not any(isinstance(item, containers) for item in items)


def _kind(obj: Any) -> str:
    if isinstance(obj, nn.Module):
        return f"module:{type(obj).__name__}"
    if isinstance(obj, torch.Tensor):
        return f"{str(obj.dtype)[len('torch.') :]}{list(obj.shape)}"
    return f"{type(obj).__name__}[{len(obj)}]" if isinstance(obj, (list, tuple)) and obj else type(obj).__name__


def _is_tensor(obj: Any) -> bool:
    return type(obj) in (torch.Tensor, nn.Parameter)


def _is_random_state(obj: Any) -> bool:
    """Return whether this is what random.getstate, numpy.random.get_state or torch.get_rng_state has returned."""
    if isinstance(obj, torch.Tensor):
        return obj.dtype == torch.uint8 and obj.dim() == 1 and obj.numel() in STATE_SIZES
    if isinstance(obj, (tuple, list)) and len(obj) == 5:
        return isinstance(obj[0], str) and obj[0] == "MT19937"
    return isinstance(obj, (tuple, list)) and len(obj) == 3 and isinstance(obj[1], (tuple, list)) and len(obj[1]) == 625


def _plain_state(state: Any) -> Any:
    parts = [state] if isinstance(state, torch.Tensor) else state
    return [part.tolist() if hasattr(part, "tolist") else part for part in parts]


def _hash(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()

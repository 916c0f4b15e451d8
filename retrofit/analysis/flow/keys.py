"""Keys of entries in containers, as far as they are written down."""

from __future__ import annotations

import ast
from enum import Enum

from .stored import literal_key

Keys = tuple[object, ...]  # of entries of containers in containers, outermost first; None: not known


class Key(Enum):
    """A key that is not a literal."""

    ELEMENT = "any entry that an iteration gives: of a dict, its keys"


def may_be(key: object, wanted: object) -> bool:
    """Return whether an entry can be one that is asked for."""
    return key is None or wanted in (None, Key.ELEMENT) or key == wanted


def before_slice(part: ast.Slice, keys: Keys) -> Keys:
    """Return the keys, in the whole, of an entry of a slice: `x[2:]` begins with `x[2]`; None where it is not known."""
    first = 0 if part.lower is None else literal_key(part.lower)
    is_known = part.step is None and isinstance(first, int) and first >= 0
    if keys and is_known and isinstance(keys[0], int) and keys[0] >= 0:
        return (keys[0] + first, *keys[1:])  # type: ignore[operator]
    return (None, *keys[1:]) if keys else keys

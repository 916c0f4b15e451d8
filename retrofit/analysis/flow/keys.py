"""Keys of entries in containers, as far as they are written down."""

from __future__ import annotations

import ast
from enum import Enum

from .stored import Changed, Keys, Stored, literal_key

MOST_INDEX = 100  # of those that are told apart: `values = values[1:]` in a loop has no last one


class Key(Enum):
    """A key that is not a literal."""

    ELEMENT = "any entry that an iteration gives: of a dict, its keys"


def may_be(key: object, wanted: object) -> bool:
    """Return whether an entry can be one that is asked for."""
    return key is None or wanted in (None, Key.ELEMENT) or key == wanted


def keys_inside(stored: Stored | Changed, keys: Keys) -> Keys | None:
    """Return the keys, in what is put into a container, of an entry of that container; None where it is another one."""
    if stored.is_spread:
        return (None, *keys[1:]) if isinstance(keys[0], int) else keys
    is_key = keys[0] is Key.ELEMENT and isinstance(stored.key, str)  # of a dict an iteration gives the key
    return keys[1:] if may_be(stored.key, keys[0]) and not is_key else None


def before_slice(part: ast.Slice, keys: Keys) -> Keys:
    """Return the keys, in the whole, of an entry of a slice: `x[2:]` begins with `x[2]`; None where it is not known."""
    first = 0 if part.lower is None else literal_key(part.lower)
    is_known = part.step is None and isinstance(first, int)
    return (later(keys[0], first) if is_known else None, *keys[1:]) if keys else keys  # type: ignore[arg-type]


def later(key: object, first: int) -> object:
    """Return the index in a whole of an entry of what begins at `first` there; None where it is not known."""
    is_known = isinstance(key, int) and 0 <= key <= MOST_INDEX and first >= 0
    return key + first if is_known else None  # type: ignore[operator]


def has_no_entry(node: ast.AST, keys: Keys) -> bool:
    """Return whether an expression has no such entry: what is computed from numbers has none by name."""
    if not keys or not isinstance(keys[0], str):
        return False
    return isinstance(node, ast.UnaryOp) or (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr))


def is_of_container(keys: Keys) -> bool:
    """Return whether what is asked for is an entry of a dict, or all that is in something."""
    return any(key is None or isinstance(key, (str, Key)) for key in keys)

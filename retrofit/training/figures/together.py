"""The calls that bring values of all ranks together: what they give, or what they change, is the same on every rank."""

from __future__ import annotations

import ast

from retrofit.training.torch_api.distributed import SAME_IN_PLACE, SAME_ON_ALL_RANKS
from retrofit.training.torch_api.frameworks import GATHERING_METHODS, GATHERING_PACKAGES


def gives_the_same(names: set[str]) -> bool:
    """Return whether every rank gets the same from a call of one of these names."""
    methods = (name for name in names if name.startswith(GATHERING_PACKAGES))
    return bool(names & SAME_ON_ALL_RANKS) or any(name.rpartition(".")[2] in GATHERING_METHODS for name in methods)


def made_the_same(call: ast.Call, names: set[str]) -> list[ast.expr]:
    """Return the arguments that a call changes to what all ranks have together."""
    return call.args[:1] if names & SAME_IN_PLACE else []

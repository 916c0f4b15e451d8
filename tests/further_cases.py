"""Parameters of a test, of which the further cases of what others show run with `bash tests/run.sh --all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def with_further(names: Iterable[str], *further: str) -> list[Any]:
    """Return the names as parameters, those in `further` marked slow."""
    names = list(names)
    assert set(further) <= set(names), sorted(set(further) - set(names))
    return [pytest.param(name, marks=pytest.mark.slow) if name in further else name for name in names]

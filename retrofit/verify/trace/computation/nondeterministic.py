"""Operators that compute a different result each time, as torch's own warnings name them."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from typing import Any

from retrofit.verify.trace.events import NondeterministicOperator, Record

_PATTERN = r"(.+?) (?:does not have a deterministic implementation|defaults to a non-deterministic algorithm)"


def record_nondeterministic(record: Record) -> None:
    """Record NondeterministicOperator once per operator from torch's warnings, and do not show these.

    For a process under `torch.use_deterministic_algorithms(True, warn_only=True)`. A script that ignores warnings
    ignores all but these.
    """
    show = warnings.showwarning
    known: set[str] = set()

    def showwarning(
        message: Any, category: Any, filename: Any, lineno: Any, file: Any = None, line: Any = None
    ) -> None:
        found = re.match(_PATTERN, str(message))
        if found is None:
            show(message, category, filename, lineno, file, line)
        elif found.group(1) not in known:
            known.add(found.group(1))
            record(NondeterministicOperator(found.group(1)))

    warnings.showwarning = showwarning
    for name in ("filterwarnings", "simplefilter", "resetwarnings"):
        setattr(warnings, name, _followed_by_own_filter(getattr(warnings, name)))
    _own_filter()


_own_filter = functools.partial(warnings.filterwarnings, "always", message=_PATTERN)


def _followed_by_own_filter(change: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(change)
    def changed(*args: Any, **kwargs: Any) -> None:
        change(*args, **kwargs)
        _own_filter()

    return changed

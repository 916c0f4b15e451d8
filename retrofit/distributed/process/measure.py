"""`RETROFIT_WHY=1`: the measurement of `retrofit why` in this training, where the kit is installed."""

from __future__ import annotations

import importlib
import os

from .process_group import before_joining


def measure_if_asked() -> None:
    """Switch on what says where the time of a step goes; it writes to `why/`. Raises ImportError without the kit."""
    if os.environ.get("RETROFIT_WHY", "0") in ("", "0"):
        return
    try:
        importlib.import_module("retrofit.why.live").begin()
    except ImportError as error:
        raise ImportError("RETROFIT_WHY=1 needs torch-retrofit in this Python: install it, or unset it") from error


before_joining.append(measure_if_asked)

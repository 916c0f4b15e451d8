"""The options that a checkpoint holds: none that depend on the machine; the environment's values override them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ..strategies.flags import PLACE_FLAGS, RUNTIME_FLAGS


def without_place(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` without those that say where a process runs: what a checkpoint may carry to another machine."""
    return {name: value for name, value in options.items() if name not in PLACE_FLAGS}


def saved_options(checkpoint: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a checkpoint's "options" without those that the environment sets now: a twin wins over the past."""
    environ = os.environ if environ is None else environ
    now = {flag.name for flag in RUNTIME_FLAGS if environ.get(flag.environment_twin)}
    return {name: value for name, value in checkpoint.get("options", {}).items() if name not in now}

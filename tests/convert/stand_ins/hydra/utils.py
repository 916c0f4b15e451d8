"""A stand-in for hydra.utils."""

from __future__ import annotations

import importlib
from typing import Any


def instantiate(config: dict[str, Any], **options: Any) -> Any:
    """Return an object of the class that a configuration names."""
    options = {**config, **options}
    module, _, name = options.pop("_target_").rpartition(".")
    return getattr(importlib.import_module(module), name)(**options)

"""Output from one rank only: prints, writers and other objects that must exist once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .process_group import is_main_process


def print_main(*values: Any, **options: Any) -> None:
    """Print on rank 0; the other ranks stay silent. Takes what `print` takes."""
    if is_main_process():
        print(*values, **options)


def on_main_process(factory: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `factory(*args, **kwargs)` on rank 0 and a `SilentObject` on the others.

    For what must exist once: `writer = on_main_process(SummaryWriter, logdir)`.
    """
    return factory(*args, **kwargs) if is_main_process() else SilentObject()


class SilentObject:
    """Takes every method call and does nothing; falsy, so that `if writer:` guards expensive preparation."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ignore

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> SilentObject:
        return self

    def __exit__(self, *exception: Any) -> None:
        return None

    @staticmethod
    def _ignore(*args: Any, **kwargs: Any) -> None:
        return None

"""Changes to modules of other libraries, made when the script imports them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def after_import(name: str, change: Callable[[ModuleType], None]) -> None:
    """Call `change(module)` once the module `name` is imported, at once if it is already.

    An AttributeError is ignored: another release of the library, or another module of that name.
    """
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Watch(name, change))
    else:
        with suppress(AttributeError):
            change(module)


class _Watch(MetaPathFinder):
    """Finds one module as the other finders do, and changes it when it has run."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                loader = spec.loader
                if loader is not None and hasattr(loader, "exec_module"):
                    # On the loader itself, which stays the one that importlib.resources and inspect ask.
                    loader.exec_module = functools.partial(  # type: ignore[method-assign]
                        self._run, loader, loader.exec_module
                    )
                return spec
        return None

    def _run(self, loader: Loader, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        exec_module(module)
        if module.__name__ == self._name:  # a zip file's loader serves several modules
            del loader.exec_module
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            with suppress(AttributeError):
                self._change(module)

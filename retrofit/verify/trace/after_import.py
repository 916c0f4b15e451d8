"""Changes to modules of other libraries, made when the script imports them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


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


def after_import_of(is_file: Callable[[str], bool], change: Callable[[ModuleType], None]) -> None:
    """Call `change(module)` whenever a module is imported from a file of which `is_file(path)` is true."""
    sys.meta_path.insert(0, _FileWatch(is_file, change))


def _finders_after(watch: MetaPathFinder) -> list[Any]:
    """Return the finders that come after this one: two that ask each other would never end."""
    place = next((number for number, finder in enumerate(sys.meta_path) if finder is watch), -1)
    return list(sys.meta_path[place + 1 :])


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
        for finder in _finders_after(self):
            spec = finder.find_spec(fullname, path, target)
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


class _FileWatch(MetaPathFinder):
    """Finds modules as the other finders do, and changes those of some files when they have run."""

    def __init__(self, is_file: Callable[[str], bool], change: Callable[[ModuleType], None]) -> None:
        self._is_file = is_file
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in _finders_after(self):
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.origin and spec.loader is not None and self._is_file(spec.origin):
                    self._change_after(spec.loader)
                return spec
        return None

    def _change_after(self, loader: Any) -> None:
        exec_module = loader.exec_module

        def run(module: ModuleType) -> None:
            exec_module(module)
            with suppress(AttributeError):
                self._change(module)

        loader.exec_module = run

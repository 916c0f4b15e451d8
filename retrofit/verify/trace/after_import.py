"""Changes to modules of other libraries, made when the script imports them."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
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


def compile_instead(is_file: Callable[[str], bool], compiled: Callable[[str], CodeType]) -> None:
    """Let modules in files of which `is_file(path)` is true run the code `compiled(path)`."""
    sys.meta_path.insert(0, _CodeWatch(is_file, compiled))


class _AsksOthers(MetaPathFinder):
    """Asks the finders that come after it, and answers nothing to one of these that asks all others in its turn."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        if fullname in self._asked:
            return None
        place = next((number for number, finder in enumerate(sys.meta_path) if finder is self), -1)
        others: list[Any] = sys.meta_path[place + 1 :]
        self._asked.add(fullname)
        try:
            return next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        finally:
            self._asked.discard(fullname)


class _Watch(_AsksOthers):
    """Finds one module as the other finders do, and changes it when it has run."""

    def __init__(self, name: str, change: Callable[[ModuleType], None]) -> None:
        super().__init__()
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self.found_by_others(fullname, path, target) if fullname == self._name else None
        loader = None if spec is None else spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            # On the loader itself, which stays the one that importlib.resources and inspect ask.
            loader.exec_module = functools.partial(  # type: ignore[method-assign]
                self._run, loader, loader.exec_module
            )
        return spec

    def _run(self, loader: Loader, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        exec_module(module)
        if module.__name__ == self._name:  # a zip file's loader serves several modules
            vars(loader).pop("exec_module", None)  # gone where a module is executed twice, as cv2 is
            sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
            with suppress(AttributeError):
                self._change(module)


class _FileWatch(_AsksOthers):
    """Finds modules as the other finders do, and changes those of some files when they have run."""

    def __init__(self, is_file: Callable[[str], bool], change: Callable[[ModuleType], None]) -> None:
        super().__init__()
        self._is_file = is_file
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self.found_by_others(fullname, path, target)
        if spec is not None and spec.origin and spec.loader is not None and self._is_file(spec.origin):
            self._change_after(spec.loader)
        return spec

    def _change_after(self, loader: Any) -> None:
        exec_module = loader.exec_module

        def run(module: ModuleType) -> None:
            exec_module(module)
            with suppress(AttributeError):
                self._change(module)

        loader.exec_module = run


class _CodeWatch(_AsksOthers):
    """Finds modules as the other finders do, and gives those of some files another code."""

    def __init__(self, is_file: Callable[[str], bool], compiled: Callable[[str], CodeType]) -> None:
        super().__init__()
        self._is_file = is_file
        self._compiled = compiled

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = self.found_by_others(fullname, path, target)
        if spec is None or not spec.origin or not hasattr(spec.loader, "get_code") or not self._is_file(spec.origin):
            return spec
        origin = spec.origin
        spec.loader.get_code = lambda name: self._compiled(origin)  # type: ignore[union-attr]
        return spec

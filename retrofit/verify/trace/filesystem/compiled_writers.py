"""Writers in compiled code: the interpreter raises no event for the files that they open."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, NamedTuple

from retrofit.verify.trace.after_import import after_import


class Argument(NamedTuple):
    """One argument of a function, given by position or by name."""

    position: int
    name: str

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return args[self.position] if len(args) > self.position else kwargs.get(self.name)


class Writer(NamedTuple):
    """A function that writes a file; one with a `mode` reads it when that is absent or "r"."""

    module: str
    function: str
    file: Argument
    mode: Argument | None = None


WRITERS = [
    Writer("torch.jit._script", "RecursiveScriptModule.save", Argument(1, "f")),  # torch.jit.save calls it
    Writer("safetensors.torch", "save_file", Argument(1, "filename")),
    Writer("safetensors.numpy", "save_file", Argument(1, "filename")),
    Writer("cv2", "imwrite", Argument(0, "filename")),
    Writer("h5py._hl.files", "File.__init__", Argument(1, "name"), Argument(2, "mode")),
]


def install_compiled_writers(writes: Callable[[Any], None]) -> None:
    """Have `writes(path)` called before one of WRITERS writes, also in modules that are imported later."""
    for writer in WRITERS:
        after_import(writer.module, functools.partial(_wrap, writer, writes))


def _wrap(writer: Writer, writes: Callable[[Any], None], module: ModuleType) -> None:
    *owners, name = writer.function.split(".")
    owner = functools.reduce(getattr, owners, module)
    write = getattr(owner, name)

    @functools.wraps(write)
    def traced(*args: Any, **kwargs: Any) -> Any:
        if writer.mode is None or writer.mode.of(args, kwargs) not in (None, "r"):
            writes(writer.file.of(args, kwargs))
        return write(*args, **kwargs)

    setattr(owner, name, traced)

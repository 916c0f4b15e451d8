"""Stalls of a step besides its computation: prints, log messages, curves, checkpoints and waits for a GPU."""

from __future__ import annotations

import builtins
import functools
import logging
from typing import Any

import torch

from retrofit.verify.trace.after_import import after_import
from retrofit.why.marks import Marks

PRINT, LOGGING, CURVES, SAVE, WAIT = "print", "logging", "curves", "save", "wait for the GPU"
WRITERS = (("torch.utils.tensorboard.writer", "SummaryWriter"), ("tensorboardX.writer", "SummaryWriter"))


def watch_stalls(marks: Marks) -> None:
    """Mark prints, log messages, calls of TensorBoard's writers, `torch.save`, and reads of a GPU's results."""
    builtins.print = _marked(builtins.print, PRINT, marks)
    logging.Logger.handle = _marked(logging.Logger.handle, LOGGING, marks)  # type: ignore[method-assign]
    torch.save = _marked(torch.save, SAVE, marks)
    for module, name in WRITERS:
        after_import(module, functools.partial(_watch_writer, name, marks))
    if torch.cuda.is_available():
        for method in ("item", "tolist", "cpu", "numpy"):
            setattr(torch.Tensor, method, _marked_on_gpu(getattr(torch.Tensor, method), marks))


def _marked(function: Any, name: str, marks: Marks) -> Any:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with marks.during(name):
            return function(*args, **kwargs)

    return marked


def _marked_on_gpu(method: Any, marks: Marks) -> Any:
    @functools.wraps(method)
    def marked(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not self.is_cuda:
            return method(self, *args, **kwargs)
        with marks.during(WAIT):
            return method(self, *args, **kwargs)

    return marked


def _watch_writer(name: str, marks: Marks, module: Any) -> None:
    writer = getattr(module, name)
    for method in [one for one in vars(writer) if one.startswith("add_") or one in ("flush", "close")]:
        setattr(writer, method, _marked(getattr(writer, method), CURVES, marks))

"""Calls in a fork of the process, which change nothing in it."""

from __future__ import annotations

import json
import os
import select
import signal
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar

Answer = TypeVar("Answer")  # of what JSON has


def in_a_fork(call: Callable[[], Answer], silence: Callable[[], None], limit_s: float) -> Answer | None:
    """Return what a call returns in a process of its own; None where it fails or takes longer.

    `silence()` stops the record of what happens there.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork with threads: a loader does the same
        pid = os.fork()
    if pid == 0:
        _answer(call, silence, writer)
    os.close(writer)
    with open(reader, "rb") as pipe:
        text = pipe.read() if select.select([pipe], [], [], limit_s)[0] else b""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return json.loads(text) if text else None


def _answer(call: Callable[[], Any], silence: Callable[[], None], writer: int) -> NoReturn:
    try:
        silence()
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        os.write(writer, json.dumps(call()).encode())
    finally:
        os._exit(0)

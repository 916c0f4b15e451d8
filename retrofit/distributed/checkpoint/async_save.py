"""Checkpoints that are written in the background, while the training continues.

Nothing in the background communicates: collectives of a second thread could meet the main thread's in another order on
another rank, and the job would hang. A rank's thread writes that rank's own files and rank 0's thread then waits for
the other ranks' by looking into the folder (sharded_checkpoint.py), so a checkpoint is there as soon as it is complete,
not only at the next save. Collectives happen in the main thread alone: when a save begins and in `finish_saves`.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Callable

from ..collectives import on_any_rank, raise_together
from ..process.process_group import before_leaving

POLL_S = 0.02
# That rank 0 waits for the other ranks' files once its own training has ended by an error: they may be gone, or still
# writing. torchrun kills what is left of a failed job after 30 s.
GRACE_S = 15.0
_under_way: Save | None = None


class Save:
    """One rank's part of a checkpoint that is being written: `write` and then `commit`, on every rank.

    `commit` gets this object, to `wait` for what the other ranks write. `discard` is called in the main thread once
    every rank has ended its `write`, and one of them with an error.
    """

    def __init__(
        self, write: Callable[[], None], commit: Callable[[Save], None], discard: Callable[[], None] = lambda: None
    ) -> None:
        self._write, self._commit, self.discard = write, commit, discard
        self.error: Exception | None = None
        self.written, self.abandoned = threading.Event(), threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        # No daemon: an interpreter that ends waits for it.
        self.thread = threading.Thread(target=self.run, name="retrofit-save", daemon=False)
        self.thread.start()

    def run(self) -> None:
        try:
            try:
                self._write()
            finally:
                self.written.set()
            self._commit(self)
        except Abandoned:
            pass
        except Exception as error:
            self.error = error

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition()`. Raises Abandoned when that cannot come true any more."""
        ended_at = None
        while not condition():
            if not threading.main_thread().is_alive():
                ended_at = ended_at or time.monotonic()
            if self.abandoned.is_set() or (ended_at and time.monotonic() - ended_at > GRACE_S):
                raise Abandoned
            time.sleep(POLL_S)


class Abandoned(Exception):
    """Another rank could not write its part of the checkpoint."""


def start_save(save: Save, *, in_thread: bool, asynchronous: bool) -> None:
    """Write a checkpoint; return when it is done, or at once if `asynchronous`.

    Collective: every rank, after `finish_saves`. Raises as `finish_saves` does, now or there.
    """
    global _under_way
    assert _under_way is None, "finish_saves comes first"
    _under_way = save
    if in_thread or asynchronous:
        save.start()
    else:
        save.run()
    if asynchronous:
        atexit.register(_report_lost)
    else:
        finish_saves()


def finish_saves() -> None:
    """Wait for the checkpoint that is being written in the background, if there is one.

    Collective: every rank. Each save begins with it, and a training that saves in the background ends with it
    (`cleanup_distributed` calls it too). An error of the background is raised on every rank: the rank's own where it
    happened (OSError when a file could not be written), a RuntimeError that names it on the others.
    """
    global _under_way
    save, _under_way = _under_way, None
    if save is None:
        return
    atexit.unregister(_report_lost)
    save.written.wait()
    failed = on_any_rank(save.error is not None)
    if failed:  # or rank 0 would wait for files that never come
        save.abandoned.set()
    if save.thread is not None:
        save.thread.join()
    if failed:
        save.discard()
    raise_together(save.error)


before_leaving.append(finish_saves)


def _report_lost() -> None:
    """Print the error of a save that was not waited for: the training failed before it called `finish_saves`."""
    if _under_way is not None and _under_way.error is not None:
        print(f"{type(_under_way.error).__name__}: {_under_way.error}", file=sys.stderr, flush=True)

"""Logging of several ranks: rank 0 has the console; the other ranks' warnings and errors go to files, one per rank."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections import deque
from typing import Any

from ..process.options import get_option
from ..process.process_group import get_rank, get_world_size

FILE_NAME = "rank{rank}.log"
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MAX_EARLY_RECORDS = 1000  # the newest that are kept in memory until there is a folder

_rank_log: RankLog | None = None


class RankLog(logging.Handler):
    """Keeps records in memory until it is given a file; the file is made when there is something to write."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark
        self.setFormatter(logging.Formatter(FORMAT))
        self._early: deque[logging.LogRecord] = deque(maxlen=MAX_EARLY_RECORDS)
        self._file: logging.FileHandler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._file is None:
            self._early.append(record)
        else:
            self._file.emit(record)

    def write_to(self, path: str) -> None:
        """Write what was kept, and from now on everything, to the end of the file at `path`."""
        with self.lock:  # type: ignore[union-attr]  # other threads may log
            if self._file is not None:
                self._file.close()
            self._file = logging.FileHandler(path, delay=True, encoding="utf-8")
            self._file.setFormatter(self.formatter)
            while self._early:
                self._file.emit(self._early.popleft())

    def close(self) -> None:
        """Close the file; what never got one is shown on the console, so that it is not lost."""
        while self._early:
            print(f"{self.mark} {self.format(self._early.popleft())}", file=sys.stderr, flush=True)
        if self._file is not None:
            self._file.close()
        super().close()


def setup_rank_logging(level: str | None = None) -> None:
    """Give the console to rank 0, from `level` on (default: `--log_level`), and keep the other ranks' records.

    What goes through `logging`, and on ranks other than 0 through `warnings`, is kept from WARNING on (`--log_level
    DEBUG` or ERROR: from that on), in memory until `keep_rank_log_in` has named the run's folder; at the end of a
    process that never had a folder it is printed, each record marked `[rank r/w]`. A handler of the script that
    writes to the console is replaced on those ranks, a handler that writes elsewhere stays. Rank 0 shows records in
    the form that it would without this call. Any rank; call it once, after `setup_distributed`.

    Raises ValueError for an unknown level.
    """
    global _rank_log
    level = get_option("log_level") if level is None else level
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ValueError(f"unknown log level {level!r}; use one of: DEBUG, INFO, WARNING, ERROR")
    root = logging.getLogger()
    if get_rank() == 0:
        if level != "INFO" or not root.handlers:  # by default a script's own choice stays
            root.setLevel(level)
        if logging.lastResort is not None:  # what shows the records of a script that has set up nothing
            logging.lastResort.setLevel(level)
        if level == "ERROR":
            logging.captureWarnings(True)  # they are of the level WARNING, and so not shown
        return
    if _rank_log is not None:
        return
    _rank_log = RankLog(f"[rank {get_rank()}/{get_world_size()}]")
    _rank_log.setLevel("WARNING" if level == "INFO" else level)
    root.setLevel(min(root.level or logging.WARNING, _rank_log.level))
    logging.captureWarnings(True)
    for logger in (root, *_loggers()):
        logger.handlers[:] = [_rank_log if _is_console(handler) else handler for handler in logger.handlers]
    if _rank_log not in root.handlers:
        root.addHandler(_rank_log)
    atexit.register(_rank_log.close)


def keep_rank_log_in(folder: str | os.PathLike[str]) -> None:
    """Write this rank's records into `folder` from now on, `rank1.log` and so on, with those from before.

    Nothing happens on rank 0, nor without `setup_rank_logging`. Any rank.
    """
    if _rank_log is not None:
        _rank_log.write_to(os.path.join(folder, FILE_NAME.format(rank=get_rank())))


def keep_in_rank_log(text: str) -> None:
    """Write `text` as an error into this rank's file; the console has it already."""
    if _rank_log is not None and _rank_log._file is not None:
        record: Any = logging.makeLogRecord({"levelno": logging.ERROR, "levelname": "ERROR", "name": __name__})
        record.msg = text
        _rank_log.handle(record)


def _loggers() -> list[logging.Logger]:
    return [logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)]


def _is_console(handler: logging.Handler) -> bool:
    consoles = [stream for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__) if stream is not None]
    return isinstance(handler, logging.StreamHandler) and handler.stream in consoles

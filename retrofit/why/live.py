"""`RETROFIT_WHY=1`: the measurement in a normal training. Some steps are recorded now and then, and nothing between.

Every rank writes its marks to a folder that all can see, `why/` or RETROFIT_WHY_FOLDER. Rank 0 reads them a few steps
later, so that no rank waits for another, and writes why.json, why.html and curves for TensorBoard.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from retrofit.why.analysis.picture import Picture, TooFewSteps, picture_of
from retrofit.why.marks import read_marks
from retrofit.why.process import FOLDER
from retrofit.why.recording import Recording
from retrofit.why.report import card, headline, scalars

WINDOW = 50  # steps that are recorded in a row
FIRST = 5  # the first windows begin after so many steps, ten times as many, ... and then
EVERY = 1000  # steps apart
LATER = 5  # steps that rank 0 gives the others to write their marks
AT_THE_END_S = 5.0  # for which rank 0 waits for the others' last marks

_running: list[Live] = []


def begin() -> None:
    """Switch the measurement on for this process; a second call does nothing. Call it before models are made."""
    if not _running:
        _running.append(Live(Path(os.environ.get(FOLDER, "why"))))
        _running[0].begin()


def starts_window(step: int) -> bool:
    """Return whether a window begins after this many steps. All ranks count the same, and need not ask."""
    return step % EVERY == FIRST if step >= EVERY else step in (FIRST, 10 * FIRST)


class Live:
    """The windows of one process. `step`: optimizer steps made so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.recording = Recording()
        self.step, self._start = 0, 0
        self._is_unread = False
        self._last: Picture | None = None
        self._failed: Exception | None = None
        self._curves: Any = None

    def begin(self) -> None:
        """Switch the instruments on; nothing is noted before the first window."""
        self.recording.marks.is_on = False
        self.recording.begin(lambda: self._safely(self._on_step))
        atexit.register(lambda: self._safely(self._end))
        if self.recording.rank == 0:
            self._safely(self._forget)

    def _safely(self, work: Callable[[], None]) -> None:
        """Do a part of the measurement. An error of it ends the measurement, and never the training."""
        if self._failed is not None:
            return
        try:
            work()
        except Exception as error:
            self._failed, self.recording.marks.is_on = error, False
            said = f"the measurement has ended, the training has not: {type(error).__name__}: {error}"
            print(f"retrofit why: rank {self.recording.rank}: {said}", file=sys.stderr, flush=True)

    def _forget(self) -> None:
        """Remove the marks of an earlier training."""
        for old in self.folder.glob("rank*.json"):
            old.unlink()

    def _on_step(self) -> None:
        self.step += 1
        marks = self.recording.marks
        if marks.is_on and self.step == self._start + WINDOW:
            self._close()
        elif starts_window(self.step):
            self._start = self.step
            marks.begin()
        if self._is_unread and self.step == self._start + WINDOW + LATER:
            self._read()

    def _close(self) -> None:
        self.recording.facts["window"] = [self._start, self.step]
        self.recording.write(self.folder)
        self._is_unread = self.recording.rank == 0

    def _read(self) -> None:
        self._is_unread = False
        try:
            picture = picture_of(self.folder, None)
        except (TooFewSteps, OSError, ValueError):
            return  # a rank is on a machine that has another folder, or is slow: the next window tells
        windows = {tuple(facts["window"]) for facts in picture.facts}
        if len(windows) == 1 and picture.world_size == picture.facts[0]["world_size"]:
            self._last = picture
            self._write(picture, windows.pop()[1])

    def _write(self, picture: Picture, step: int) -> None:
        content = {"optimizer_step": step, **card(picture)}
        unfinished = self.folder / "why.json.part"
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        os.replace(unfinished, self.folder / "why.json")
        if self._curves is None:
            self._curves = _writer(self.folder) or False
        for name, value in scalars(picture).items() if self._curves else ():
            self._curves.add_scalar(name, value, step)

    def _end(self) -> None:
        """Say what was found, once, when the script ends."""
        if self.recording.marks.is_on:
            self._close()
        if self.recording.rank != 0:
            return
        if self._is_unread:
            self._wait_for_others()
            self._read()
        if self._curves:
            self._curves.close()
        if self._last is None:
            said = f"nothing could be compared: {self.step} steps were made, or {self.folder} is not one for all ranks"
        else:
            self._draw(self._last)
            said = f"{headline(self._last)}. Written to {self.folder}/"
        print(f"retrofit why: {said}", file=sys.stderr, flush=True)

    def _draw(self, picture: Picture) -> None:
        """Write the page, which takes a second; without matplotlib there is none."""
        with contextlib.suppress(ImportError):
            from retrofit.why.page import write_card

            made = {"Script": shlex.join(sys.argv), "Optimizer steps": str(self.step)}
            write_card(self.folder / "why.html", picture, made)

    def _wait_for_others(self) -> None:
        world, own = self.recording.facts["world_size"], self.recording.facts["window"]
        end = time.monotonic() + AT_THE_END_S
        while time.monotonic() < end and not all(self._window_of(rank) == own for rank in range(world)):
            time.sleep(0.05)

    def _window_of(self, rank: int) -> Any:
        try:
            return read_marks(self.folder / f"rank{rank}.json")[0].get("window")
        except (OSError, ValueError):
            return None


def _writer(folder: Path) -> Any:
    """Return a writer of curves for TensorBoard, None without a package that writes them."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
    return SummaryWriter(str(folder))

"""Trainings that wait for their turn: each in processes of its own, which run when they are told to.

    with Turns() as turns:
        one = turns.start("single", 1, make)          make() -> function without arguments that runs once
        two = turns.start("ddp", 2, make, strategy="ddp")
        seconds = one.run(), two.run()                the slowest process counts

The processes are forked, so that what is imported is imported once; import it before, and do not touch a GPU before.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

FORK = multiprocessing.get_context("fork")


class Turns:
    """Starts trainings, and ends them all when the block ends."""

    def __enter__(self) -> Turns:
        self._folder = tempfile.TemporaryDirectory()
        self._trainings: list[Training] = []
        return self

    def start(self, name: str, processes: int, make: Callable[..., Callable[[], Any]], **options: Any) -> Training:
        """Return a training of so many processes, each of which calls `make(url, **options)`.

        `url` is where they can meet, different for each training.
        """
        training = Training(
            name, processes, make, {"url": f"file://{self._folder.name}/{len(self._trainings)}", **options}
        )
        self._trainings.append(training)
        return training

    def __exit__(self, *_: Any) -> None:
        for training in self._trainings:
            training.stop()
        self._folder.cleanup()


class Training:
    """Processes that wait; made by `Turns.start`."""

    def __init__(self, name: str, processes: int, make: Callable[..., Any], options: dict[str, Any]) -> None:
        self._name, self._processes, self._ends = name, [], []
        for rank in range(processes):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=_wait_and_run, args=(theirs, rank, processes, make, options))
            process.start()
            theirs.close()
            self._processes.append(process)
            self._ends.append(ours)

    def ready(self) -> None:
        """Wait until all processes have made what they run."""
        self._answers()

    def run(self) -> float:
        """Run once, in all processes together, and return the seconds of the slowest."""
        for end in self._ends:
            end.send("run")
        return max(self._answers())

    def _answers(self) -> list[float]:
        answers = []
        for rank, end in enumerate(self._ends):
            try:
                answer = end.recv()
            except EOFError:
                answer = "it ended without a word"
            if isinstance(answer, str):
                raise RuntimeError(f"{self._name}: process {rank} of {len(self._ends)} failed: {answer}")
            answers.append(answer)
        return answers

    def stop(self) -> None:
        for process in self._processes:
            process.kill()  # nothing of theirs is kept, and one may wait for another that failed
            process.join()


def _wait_and_run(
    end: Connection, rank: int, processes: int, make: Callable[..., Any], options: dict[str, Any]
) -> None:
    if processes > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes))
    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  as many progress bars as trainings
    try:
        run = make(**options)
        end.send(0.0)
        while end.recv():
            started = time.perf_counter()
            run()
            end.send(time.perf_counter() - started)
    except EOFError:  # whoever would tell us is gone
        pass
    except BaseException:
        end.send(traceback.format_exc())
    finally:
        os._exit(0)  # threads that are left must not delay the end

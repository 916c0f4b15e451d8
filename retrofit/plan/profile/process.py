"""The script's process: `python -m retrofit.plan.profile.process SCRIPT ARGUMENTS`, measured for some steps.

Several copies may run at once, each as one process without the others, as many as the machine has devices: their steps
show what ranks of one machine take from each other without any communication. They wait for each other, by files, once
before the steps that are measured, and continue until all have made them.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

FOLDER, NUMBER, COPIES, STEPS = (f"RETROFIT_PLAN_{name}" for name in ("FOLDER", "NUMBER", "COPIES", "STEPS"))
OF_MEMORY, LAST_OF_START = 2, 4  # steps: that in which activations are counted, the last one that is not measured
PATIENCE_S = 120.0  # for the other copies


class Profiling:
    """What happens after each optimizer step."""

    def __init__(self, folder: Path, number: int, copies: int, steps: int) -> None:
        from retrofit.plan.profile.activations import Activations
        from retrofit.plan.profile.model_facts import ModelFacts
        from retrofit.why.recording import Recording

        self._folder, self._number, self._copies, self._steps = folder, number, copies, steps
        self._recording, self._models, self._activations = Recording(), ModelFacts(), Activations()
        self._recording.rank = number
        self._made = 0
        self._is_written = False

    def begin(self) -> None:
        """Switch the instruments on, before the script makes anything."""
        from retrofit.plan.profile.loaders import watch_epoch, watch_workers
        from retrofit.verify.trace.filesystem.files import install_private_copy

        install_private_copy(os.getcwd())
        self._models.watch()
        watch_workers(self._folder)
        watch_epoch(self._recording.facts, lambda: self._made == 0)
        self._recording.begin(self._on_step)

    def write(self) -> None:
        """Write what is known: `rankN.json` with the marks and the facts."""
        if self._is_written:
            return
        self._is_written = True
        self._activations.end()
        self._recording.facts.update(self._models.facts(), **_peak(), activation_bytes=self._activations.num_bytes)
        self._recording.write(self._folder)
        (self._folder / f"done{self._number}").touch()

    def _on_step(self) -> None:
        if self._models.rounds == self._made:
            return  # another optimizer's turn
        self._made = self._models.rounds
        if self._made == 1:
            self._models.note_gradients(self._recording.marks)
            if not self._models.is_compiled():  # its saved tensors are not seen, and hooks would be compiled with it
                self._activations.begin(self._models.trained())
        elif self._made == OF_MEMORY:
            self._models.end_search()
            self._activations.end()
        elif self._made == LAST_OF_START:
            (self._folder / f"ready{self._number}").touch()
            self._wait("ready")
            _forget_peak()  # that of the step in which activations were kept
            self._recording.marks.begin()
        elif self._made == LAST_OF_START + self._steps:
            self.write()
        if self._is_written and len(list(self._folder.glob("done*"))) >= self._copies:
            sys.stdout.flush()
            os._exit(0)

    def _wait(self, name: str) -> None:
        last = time.monotonic() + PATIENCE_S
        while len(list(self._folder.glob(f"{name}*"))) < self._copies and time.monotonic() < last:
            time.sleep(0.005)


def main() -> None:
    """Run the script as `python SCRIPT ARGUMENTS` does, until it has made the steps that are asked for."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    folder = Path(os.environ[FOLDER])
    profiling = Profiling(folder, *(int(os.environ[name]) for name in (NUMBER, COPIES, STEPS)))
    profiling.begin()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        profiling.write()


def environment(folder: Path, number: int, copies: int, steps: int) -> dict[str, str]:
    """Return the variables of copy `number` of `copies`, which writes to `folder` after `steps` measured steps."""
    values = {FOLDER: str(folder), NUMBER: str(number), COPIES: str(copies), STEPS: str(steps)}
    return {**values, "RETROFIT_WHY": "0"}


def _forget_peak() -> None:
    import torch

    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def _peak() -> dict[str, Any]:
    """Return the most memory that tensors of this process have held on its GPU; nothing without one."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "gpu_bytes": torch.cuda.get_device_properties(0).total_memory,
    }


if __name__ == "__main__":
    main()

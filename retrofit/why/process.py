"""The script's process: `python -m retrofit.why.process SCRIPT ARGUMENTS`, with the instruments switched on.

The variables say where the marks go and when the run ends: RETROFIT_WHY_FOLDER and RETROFIT_WHY_STEPS.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

FOLDER, STEPS = "RETROFIT_WHY_FOLDER", "RETROFIT_WHY_STEPS"


def main() -> None:
    """Run the script as `python SCRIPT ARGUMENTS` does, until it has made the steps that are asked for."""
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(script).resolve().parent)
    from retrofit.verify.trace.filesystem.files import install_private_copy
    from retrofit.why.recording import Recording

    install_private_copy(os.getcwd())
    recording, folder = Recording(), Path(os.environ[FOLDER])
    steps, made = int(os.environ[STEPS]), 0

    def on_step() -> None:
        nonlocal made
        made += 1
        if made == 1:
            recording.marks.begin()  # now it is known whether a GPU is used; the first step says nothing
        if made == steps:
            recording.write(folder)
            _end()

    recording.begin(on_step)
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        recording.write(folder)


def environment(folder: Path, steps: int) -> dict[str, str]:
    """Return the variables for a process that writes its marks to `folder` and ends after `steps` training steps."""
    return {FOLDER: str(folder), STEPS: str(steps), "RETROFIT_WHY": "0"}  # one recording in a process


def _end() -> None:
    """End the process: all ranks come here after the same step."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()  # no rank leaves while another one still receives
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

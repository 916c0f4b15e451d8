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
    from retrofit.why.recording import Recording

    recording = Recording(Path(os.environ[FOLDER]), int(os.environ[STEPS]))
    recording.begin()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        recording.write()


def environment(folder: Path, steps: int) -> dict[str, str]:
    """Return the variables for a process that writes its marks to `folder` and ends after `steps` training steps."""
    return {FOLDER: str(folder), STEPS: str(steps)}


if __name__ == "__main__":
    main()

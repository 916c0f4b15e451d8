"""A whole training with the measurement: `torchrun --nproc_per_node=2 -m retrofit.why train.py ARGUMENTS`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main() -> None:
    """Run a script as `python SCRIPT ARGUMENTS` does."""
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_file():
        sys.exit("usage: torchrun --nproc_per_node=N -m retrofit.why SCRIPT [ARGUMENTS OF THE SCRIPT]")
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).resolve().parent))
    from retrofit.why.live import begin

    begin()
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()

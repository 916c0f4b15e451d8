"""A folder per training run: `log/001_deeplabv3p_r50_synthetic`, numbered so that nothing is overwritten."""

from __future__ import annotations

import re
from pathlib import Path

RUN_NAME = re.compile(r"(\d{3,})_.+")


def new_run_folder(logdir: str, name: str) -> Path:
    """Create and return the next numbered folder for a run called `name`.

    Raises NotADirectoryError when `logdir` is something else than a folder.
    """
    try:
        Path(logdir).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"log folder {logdir} is not a folder; choose another --logdir") from None
    runs = run_folders(logdir)
    number = int(RUN_NAME.fullmatch(runs[0].name).group(1)) + 1 if runs else 1  # type: ignore[union-attr]
    while True:
        folder = Path(logdir) / f"{number:03d}_{name}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another training started at the same moment
            number += 1


def run_folders(logdir: str) -> list[Path]:
    """Return the run folders in `logdir`, the newest (highest number) first."""
    folder = Path(logdir)
    if not folder.is_dir():
        return []
    found = [
        (int(match.group(1)), path)
        for path in folder.iterdir()
        if (match := RUN_NAME.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]

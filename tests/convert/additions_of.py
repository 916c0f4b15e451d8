"""Writing what a conversion makes of a script that a test has written."""

from __future__ import annotations

from pathlib import Path

from retrofit.analysis.files.start import Start
from retrofit.convert.added.files import additions
from retrofit.convert.plan import Conversion


def write_converted(folder: Path, result: Conversion) -> None:
    """Write the converted files, with the runtime next to them."""
    assert not result.refusals
    for file in result.files:
        file.path.write_bytes(file.data)
    for path, data in additions(Start(folder / "train.py", folder), True, listed=result.listed).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

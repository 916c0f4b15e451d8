"""The converted golden projects, each converted once for all tests that read or copy it."""

from __future__ import annotations

import difflib
import fcntl
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from convert.case import Case

from retrofit.analysis.files.start import Start
from retrofit.convert.added.files import additions
from retrofit.convert.plan import plan_conversion
from retrofit.convert.writing.write import write_all
from retrofit.training import read_project

PROJECTS = Path(__file__).resolve().parent / "projects"


@dataclass(frozen=True)
class Converted:
    """A project after its conversion: not to be written to."""

    folder: Path
    diff: str  # of its own files, with the figures that are listed
    findings: list[tuple[str, str]]  # code and message
    texts: dict[str, str]  # of the changed files, by name


class GoldenProjects:
    """Conversions in `folder`, which the processes of a test run have in common."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def converted(self, case: Case) -> Converted:
        place, record = self.folder / case.name, self.folder / f"{case.name}.json"
        with (self.folder / f"{case.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not record.exists():
                record.write_text(json.dumps(convert(copy_case(case, place), case.entry)), encoding="utf-8")
        content = json.loads(record.read_text(encoding="utf-8"))
        content["findings"] = [tuple(finding) for finding in content["findings"]]
        return Converted(place, **content)


def copy_case(case: Case, target: Path) -> Path:
    shutil.copytree(PROJECTS / case.name, target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def convert(folder: Path, entry: str) -> dict[str, object]:
    """Convert a project in place and return what `Converted` holds of it."""
    project = read_project(folder / entry)
    conversion = plan_conversion(project)
    assert not conversion.refusals, conversion.refusals
    diff = "".join(_diff(file.source.name, file.source.text, file.text) for file in conversion.files)
    files = {file.path: file.data for file in conversion.files}
    start = Start(project.entry.path, folder)
    write_all(folder, {**files, **additions(start, vendor=True, listed=conversion.listed)}, start)
    return {
        "diff": diff + "".join(f"# {finding.place}: {finding.message}\n" for finding in conversion.listed),
        "findings": [(finding.code, finding.message) for finding in conversion.findings],
        "texts": {file.source.name: file.text for file in conversion.files},
    }


def _diff(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), name, name, lineterm="", n=1)
    return "".join(f"{line}\n" for line in lines)

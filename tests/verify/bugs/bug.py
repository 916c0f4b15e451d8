"""A seeded bug: a sound project and the edits that make it one which trains wrongly on several GPUs."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROJECTS = Path(__file__).resolve().parents[1] / "projects"
SMALL_PROJECTS = ("classifier", "language_model", "gan", "metric_learning")
REFERENCE = ("train.py", "utils.py", "segmentation", "configs", "tests/single_gpu", "retrofit", "scripts")

# What makes a run of a project take seconds.
SHORT = {
    "classifier": [],
    "language_model": [],
    "gan": [],
    "metric_learning": [],
    "reference": ["--layers", "18", "--crop_size", "32", "--epochs", "2", "--workers", "0", "--batchsize", "8"],
}


@dataclass(frozen=True)
class Bug:
    """One bug as a person would write it.

    id: the row of the list it belongs to, "01".."25" of bugs that recur in many projects, "R1".."R10" of those that a
    retrofit of the reference project has had; a letter behind it tells variants apart.
    edits: (file, old text, new text), the old text exactly once in the file.
    arguments: of the script, those of SHORT included. verify_options: of `retrofit verify`, before the script.
    cause: rule codes of which `verify` should name at least one. check: a check that should fail.
    note: what a user sees of it in a plain run of two processes.
    """

    id: str
    title: str
    project: str
    edits: list[tuple[str, str, str]]
    cause: tuple[str, ...]
    check: str
    note: str
    arguments: list[str] = field(default_factory=list)
    verify_options: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", [*SHORT[self.project], *self.arguments])


def copy_project(project: str, target: Path) -> Path:
    """Copy a sound project into `target` (created) and return the path of its train.py there."""
    skip = shutil.ignore_patterns("__pycache__")
    if project in SMALL_PROJECTS:
        shutil.copytree(PROJECTS / project, target, ignore=skip, dirs_exist_ok=True)
        return target / "train.py"
    target.mkdir(parents=True, exist_ok=True)
    for name in REFERENCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=skip, dirs_exist_ok=True)
        else:
            shutil.copyfile(ROOT / name, target / name)
    return target / "train.py"


def seed_bug(bug: Bug, target: Path) -> Path:
    """Copy the bug's project into `target`, apply its edits and return the path of the train.py there.

    Raises ValueError for an old text that is not in its file exactly once.
    """
    script = copy_project(bug.project, target)
    for name, old, new in bug.edits:
        path = target / name
        text = path.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(
                f"bug {bug.id}: {name} holds {old!r} {text.count(old)} times, not once; bring the edit up to date"
            )
        path.write_text(text.replace(old, new), encoding="utf-8")
    return script

"""The plan of a verification: what was asked for, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrofit.verify.checks.checkpoint.one_process.same_checkpoint import LOADED_ON_ONE, ON_ONE
from retrofit.verify.checks.options import FLOAT64
from retrofit.verify.evidence import Run
from retrofit.verify.processes.interpreters import Interpreter
from retrofit.verify.trace.settings import CutEpoch

OF_ORIGINAL = ("original", "reload_original", "alone", "alone_resumed", ON_ONE, LOADED_ON_ONE)


@dataclass(frozen=True)
class Plan:
    """What `retrofit verify` was asked to run."""

    script: Path  # absolute
    arguments: list[str]  # of the script, before and after the conversion
    folder: Path  # everything that the runs write
    nproc: int = 2
    steps: int = 20  # batches with an optimizer step per run, half of them per epoch; 0 = all that the script takes
    original: Path | None = None  # absolute
    converted_arguments: list[str] = field(default_factory=list)  # that the original does not know
    batch_flag: str | None = None  # a flag of the script whose value is divided by nproc at world size N
    resume_arguments: list[str] | None = None  # None: found out from the script's own parser
    use_gpus: bool = False
    is_launched: bool = False  # one process has a launcher's variables, too: the script does not run without
    precision: str = FLOAT64  # in which the runs are compared, or AS_IS
    spawns: bool = False  # the script starts its processes itself (mp.spawn)
    number_option: str | None = None  # its option that says how many
    in_turn: bool = False  # the runs are made one after the other: their groups meet at one port
    time_limit_s: float = 600.0
    idle_s: float = 20.0
    project: Path = field(default_factory=Path.cwd)
    module: str = ""  # the script is started as `python -m module`
    start: str = ""  # the folder of the project in which it is started
    # Files that are not in the project so far, or are others there, by their path in it: the original has none of them.
    changes: Mapping[str, bytes] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)  # of every run
    watched: Mapping[str, Sequence[int]] = field(default_factory=dict)  # lines, by file: whether several processes run

    def project_of(self, name: str) -> Path:
        """Return the copy of the project in which a run is made."""
        return self.folder / name / "project"

    @property
    def judged_script(self) -> Path:
        """The script that is judged, with its changes: in the copy of the run on one process, if that was made."""
        script = self.project_of("one") / os.path.relpath(self.script, self.project)
        return script if script.is_file() else self.script

    def is_of_original(self, name: str) -> bool:
        """Return whether a run is one of the script before the change."""
        return self.original is not None and name in OF_ORIGINAL


@dataclass
class FinishedRuns:
    """The finished runs by name, and what a reader wants to know about them."""

    by_name: dict[str, Run] = field(default_factory=dict)
    commands: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)  # why a run was not made
    lengths: dict[str, CutEpoch] = field(default_factory=dict)  # of cut epochs, where the script asks for them
    interpreters: dict[int, Interpreter] = field(default_factory=dict)  # by the rank that they fork
    kept_batch: str = ""  # what keeps the global batch, where the script as it is started has a larger one

"""The runs that continue from a checkpoint: the likeliest arguments first, then others until one continues."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from retrofit.verify.checks.checkpoint.one_process.same_checkpoint import LOADED, LOADED_ON_ONE
from retrofit.verify.evidence import Run
from retrofit.verify.trace.runtime import defines_mark

from .arguments import SURE
from .restart import Restart, continues, fails_at_start, is_refused, loading_ways, loads, plan_restarts

if TYPE_CHECKING:
    from retrofit.verify.runs.plan import FinishedRuns, Plan

MOST_TRIES = 4
MOST_LOADS = 2
LOADS_SOMETHING = re.compile(r"torch\.load|load_state|load_checkpoint|\bresume", re.IGNORECASE)
UNKNOWN = "the script has no --resume; name its arguments with --resume-args"
TEXT = "restarts from the checkpoint"
LOADING = "with a checkpoint that is loaded to begin with"
Make = Callable[[str, Sequence[str], Mapping[str, Restart]], None]  # runs, with what is said of them


class Resumes:
    """Finds the arguments with which the script continues, and makes the runs that do."""

    def __init__(self, plan: Plan, runs: FinishedRuns, snapshot: Path, make: Make) -> None:
        self._plan, self._runs, self._make, self._snapshot = plan, runs, make, snapshot
        self._ways: dict[str, list[Restart]] = {}
        scripts = {"resumed": "many", "reload": "many", **({"reload_original": "original"} if plan.original else {})}
        for name, script in scripts.items():
            many = runs.by_name["many"]
            answer = plan_restarts(plan.resume_arguments, many, runs.by_name[script], snapshot)
            if isinstance(answer, str):
                runs.reasons[name] = answer
            else:
                self._ways[name] = answer

    def sure(self) -> dict[str, Restart]:
        """Return the restarts by arguments that need not be tried."""
        return {name: ways[0] for name, ways in self._ways.items() if ways and ways[0].form.needs == SURE}

    def tried(self, made: Mapping[str, Restart], script: Path) -> dict[str, Restart]:
        """Return the restarts that count, of those that were made and others that are tried where they do not work."""
        first = self._runs.by_name.get("resumed")
        ways = list(self._ways.get("resumed", ()))
        if not ways or self._plan.resume_arguments is not None:
            return dict(made)
        if first is not None and (not fails_at_start(first) or loads(self._runs.by_name["many"], first, ways[0])):
            return dict(made)
        ways = ways[1:] if first is not None else ways
        found = self._first_that_continues([way for way in ways if way.arguments or _may_load(script)])
        if found is not None:
            others = {name: way for name in self._ways if name != "resumed" and (way := self._same_way(name, found))}
            for name in made.keys() - {"resumed"}:
                shutil.rmtree(self._plan.folder / name, ignore_errors=True)
            self._make(TEXT, list(others), others)
            return {"resumed": found, **others}
        if first is not None and not is_refused(first):
            self._runs.by_name["resumed"] = first
            return dict(made)
        self._forget(made, ways)
        self._load()
        return {}

    def _first_that_continues(self, ways: Sequence[Restart]) -> Restart | None:
        for way in islice(ways, MOST_TRIES):
            shutil.rmtree(self._plan.folder / "resumed", ignore_errors=True)
            self._make(TEXT, ["resumed"], {"resumed": way})
            if continues(self._runs.by_name["many"], self._runs.by_name["resumed"], way):
                return way
        return None

    def _load(self) -> None:
        """Start the script with an option that loads a checkpoint and does not continue: weights to begin with.

        What it loads is what one process loads with it: the script before the change, if there is one.
        """
        many, script = self._runs.by_name["many"], "reload_original" if self._plan.original else "reload"
        known = {way.form for way in self._ways.get(script, ())}
        ways = [way for way in self._ways.get("resumed", ()) if way.form in known]
        for way in islice(loading_ways(many, ways, self._snapshot), MOST_LOADS):
            self._make(LOADING, [LOADED], {LOADED: way})
            self._make(LOADING, [LOADED_ON_ONE], {LOADED_ON_ONE: way})
            on_one = self._runs.by_name[LOADED_ON_ONE]
            if on_one.finished and on_one.num_steps and loads(many, on_one, way):
                return
            for name in (LOADED, LOADED_ON_ONE):
                shutil.rmtree(self._plan.folder / name, ignore_errors=True)
                del self._runs.by_name[name], self._runs.commands[name]

    def _same_way(self, name: str, found: Restart) -> Restart | None:
        return next((way for way in self._ways[name] if way.form == found.form), None)

    def _forget(self, made: Mapping[str, Restart], ways: Sequence[Restart]) -> None:
        """Leave out the runs of arguments that are not those with which the script continues."""
        tried = [shlex.join(way.arguments) for way in [*made.values(), *ways][:MOST_TRIES] if way.arguments]
        texts = ", ".join(dict.fromkeys(tried))
        said = f"tried without success: {texts}; name the script's arguments that resume with --resume-args"
        for name in self._ways:
            self._runs.by_name.pop(name, None)
            self._runs.commands.pop(name, None)
            self._runs.reasons[name] = said if texts else UNKNOWN


def on_one_process(plan: Plan, alone: Run, parser: Run, snapshot: Path, made: Mapping[str, Restart]) -> Restart | None:
    """Return how the script is continued on one process: as on several, where its parser has that."""
    answer = plan_restarts(plan.resume_arguments, alone, parser, snapshot)
    if isinstance(answer, str):
        return None
    forms = [restart.form for restart in made.values()]
    return next((way for way in answer if way.form in forms), None)


def _may_load(script: Path) -> bool:
    """Return whether a file next to the script loads anything: without that it does not continue by itself."""
    for path in islice(script.parent.rglob("*.py"), 200):
        text = path.read_text(encoding="utf-8", errors="replace")
        if LOADS_SOMETHING.search(text) and not defines_mark(str(path)):
            return True
    return False

"""The calls through which a figure leaves a program, or decides what it does next."""

from __future__ import annotations

import ast

from retrofit.analysis.interpreter.calls import PASSED
from retrofit.analysis.memory import answered_once
from retrofit.analysis.python_api import ADDS_ALL, ADDS_ONE, EMPTIES, REMOVES, SORTS_IN_PLACE
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import External, Item, LocalClass, LocalFunction, Member, Result, name_of
from retrofit.analysis.values.partials import run_through_partial
from retrofit.training.torch_api.files import SAVE_METHODS, SAVES_ITSELF
from retrofit.training.torch_api.modules import CHANGES_ITSELF
from retrofit.training.torch_api.output import BAR_TEXTS, BARS, LOGGER_METHODS, PRINTS, SHOWS_NOTHING
from retrofit.training.torch_api.runtime import ON_MAIN, START_TRACKER
from retrofit.training.torch_api.trackers import LOG_METHODS, PLOT_METHODS, STARTS, TRACKERS

from ..files.outputs import PRINT, SAVE, TRACK, TRACKER, WRITE, Output

PRINTED, LOGGED, SAVED, PLOTTED, DECIDES = "printed", "logged", "saved", "plotted", "decides"
WEIGHS = "weighs"  # a term of the loss
PLOTTING = ("matplotlib.", "seaborn.")
DISPLAYS = TRACKERS | {ON_MAIN, START_TRACKER}
PACKAGES = frozenset(name.partition(".")[0] for name in STARTS)
METHODS = {
    **dict.fromkeys(BAR_TEXTS | LOGGER_METHODS | {"print"}, PRINTED),
    **dict.fromkeys(SAVE_METHODS | SAVES_ITSELF, SAVED),
    **dict.fromkeys(PLOT_METHODS, PLOTTED),
    **dict.fromkeys(LOG_METHODS, LOGGED),
}
FUNCTIONS = {**dict.fromkeys(PRINTS, PRINTED), "os.write": SAVED}
CHANGING = ADDS_ONE | ADDS_ALL | EMPTIES | REMOVES | SORTS_IN_PLACE | CHANGES_ITSELF
MAKING = {"setattr", "delattr", "exec", "iter", "next", "isinstance", "del"}


class Sinks:
    """Says of a call in which way it shows what it is given."""

    def __init__(self, analysis: Analysis, outputs: list[Output]) -> None:
        self.analysis = analysis
        self.outputs = {output.call: output.kind for output in outputs}

    @answered_once
    def of(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        names = self.analysis.called(call, scope) | run_through_partial(self.analysis, call, scope)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for full in names:
            if full in FUNCTIONS:
                return FUNCTIONS[full]
            if full.startswith("logging."):
                return PRINTED
            if full.startswith(PLOTTING):
                return PLOTTED if is_discarded or full.rpartition(".")[2] in PLOT_METHODS else ""
        kind = self.outputs.get(call)
        if kind in (SAVE, WRITE, TRACK, PRINT):
            return {SAVE: SAVED, WRITE: SAVED, TRACK: LOGGED, PRINT: PRINTED}[kind]
        if names & BARS:
            return PRINTED  # how many turns it counts: tqdm(total=steps)
        if not isinstance(call.func, ast.Attribute):
            return self._of_function(call, scope, is_discarded)
        values = self.analysis.evaluate(call.func, scope)
        if any(isinstance(value, (LocalFunction, LocalClass)) for value in values):
            return ""
        if name in ("desc", "postfix"):
            return PRINTED if self._is_bar(call.func.value, scope) else ""
        if name == "update" and self._is_bar(call.func.value, scope):
            return PRINTED
        if name == "step":
            return DECIDES
        if name in METHODS:
            is_shown = is_discarded or METHODS[name] == PRINTED or self._is_of_display(call.func.value, scope)
            return METHODS[name] if is_shown else ""
        if name.startswith(("add_", "log_", "report_")) and not name.endswith("_"):
            return LOGGED if is_discarded else ""
        return self._of_unknown(name, names, is_discarded)

    def _is_of_display(self, node: ast.expr, scope: Scope) -> bool:
        """Return whether a method is of what a tracker, or a library for plots, has made: `line = vis.line(...)`."""
        names = self._made_by(node, scope)
        return bool(names) and all(_is_of_display(name) or name.startswith(PLOTTING) for name in names)

    def _made_by(self, node: ast.expr, scope: Scope) -> set[str]:
        """Return the full names of what an expression can be, or can be an entry of: `_, axes = plt.subplots()`."""
        values = set(self.analysis.evaluate(node, scope))
        while any(isinstance(value, Item) for value in values):
            values = {value.base if isinstance(value, Item) else value for value in values}
        return {name_of(value) for value in values}

    def of_entry(self, target: ast.Subscript, scope: Scope) -> str:
        """Return LOGGED for an entry of what a tracker has made: `run.summary["loss"] = loss`, `run["loss"] = loss`."""
        return LOGGED if any(_is_of_display(name) for name in self._made_by(target.value, scope)) else ""

    def _of_unknown(self, name: str, names: set[str], is_discarded: bool) -> str:
        if not is_discarded or name in CHANGING or name.endswith("_"):
            return ""
        if any(full == quiet or full.startswith(f"{quiet}.") for full in names for quiet in SHOWS_NOTHING):
            return ""
        return PASSED

    def _of_function(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        values = self.analysis.evaluate(call.func, scope)
        if not is_discarded or any(isinstance(value, (LocalFunction, LocalClass)) for value in values):
            return ""
        names = {value.name for value in values if isinstance(value, (External, Member))}
        if any(n in MAKING or n.partition(".")[0] in SHOWS_NOTHING or n.rpartition(".")[2] in CHANGING for n in names):
            return ""
        return PASSED if names else ""

    def _is_bar(self, node: ast.expr, scope: Scope) -> bool:
        values = self.analysis.evaluate(node, scope)
        if any(isinstance(value, Result) and value.builder in BARS for value in values):
            return True
        made = [b.value for b in (scope.find(node.id) or (scope, []))[1]] if isinstance(node, ast.Name) else []
        return any(isinstance(value, ast.Call) and self.analysis.called(value, scope) & BARS for value in made)


def _is_of_display(name: str) -> bool:
    """Return whether something is of a tracker, by its full name."""
    return name.partition(".")[0] in PACKAGES or any(name == d or name.startswith(f"{d}.") for d in DISPLAYS)


__all__ = ["TRACKER", "Sinks"]

"""The calls through which a figure leaves a program, or decides what it does next."""

from __future__ import annotations

import ast

from retrofit.analysis.interpreter.calls import PASSED
from retrofit.analysis.scopes import Scope
from retrofit.analysis.values.inference import Analysis
from retrofit.analysis.values.kinds import PROGRESS_BARS, External, LocalClass, LocalFunction, Member, Result

from ..files.outputs import COUNTING_BARS, PRINT, SAVE, TRACK, TRACKER, WRITE, Output

PRINTED, LOGGED, SAVED, PLOTTED, DECIDES = "printed", "logged", "saved", "plotted", "decides"
BARS = PROGRESS_BARS | COUNTING_BARS
# Methods of objects that the analysis cannot see, by what they do with what they are given.
METHODS = {
    **dict.fromkeys(("set_postfix", "set_postfix_str", "set_description", "set_description_str"), PRINTED),
    **dict.fromkeys(("info", "debug", "warning", "warn", "error", "critical", "exception", "print"), PRINTED),
    **dict.fromkeys(("write", "writelines", "writerow", "writerows", "dump", "save", "savez", "to_csv"), SAVED),
    **dict.fromkeys(("plot", "scatter", "line", "lines", "bar", "hist", "imshow", "image", "images", "semilogy",
                     "errorbar", "heatmap", "fill_between"), PLOTTED),
    **dict.fromkeys(("log", "log_metric", "log_metrics", "log_scalar", "log_value", "log_dict", "track", "report",
                     "report_scalar", "scalar_summary", "image_summary", "histo_summary", "text", "log_image",
                     "log_images", "log_histogram", "update_plot"), LOGGED),
}  # fmt: skip
FUNCTIONS = {
    "print": PRINTED, "retrofit.distributed.print_main": PRINTED, "sys.stdout.write": PRINTED,
    "sys.stderr.write": PRINTED, "warnings.warn": PRINTED, "tqdm.tqdm.write": PRINTED, "rich.print": PRINTED,
    "click.echo": PRINTED, "pprint.pprint": PRINTED, "os.write": SAVED,
}  # fmt: skip
# Of a call that gives nothing: it changes its own object, or takes part in the training.
CHANGING = {
    "append", "appendleft", "add", "push", "insert", "put", "put_nowait", "extend", "update", "extendleft", "reset",
    "setdefault", "clear", "remove", "discard", "pop", "sort", "reverse", "backward", "zero_grad", "register_hook",
    "retain_grad", "register_forward_hook", "copy_", "requires_grad_", "detach_", "load_state_dict", "train", "eval",
    "to", "cuda", "cpu", "manual_backward", "synchronize", "scale_loss", "unscale_", "clip_grad_norm_",
    "register_buffer",
    "set_epoch", "record_stream", "check_inputs", "apply", "close", "free", "empty_cache", "zero_", "manual_seed",
    "set_grad_enabled", "wait_stream", "join", "start", "set_", "grad", "add_sample", "accumulate", "observe",
}  # fmt: skip
QUIET = {"torch", "gc", "random", "time", "os.path", "copy", "math", "itertools"}  # what these are given is not shown
MAKING = {"setattr", "delattr", "exec", "iter", "next", "isinstance", "del"}


class Sinks:
    """Says of a call in which way it shows what it is given."""

    def __init__(self, analysis: Analysis, outputs: list[Output]) -> None:
        self.analysis = analysis
        self.outputs = {output.call: output.kind for output in outputs}

    def of(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        names = self.analysis.called(call, scope)
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for full in names:
            if full in FUNCTIONS:
                return FUNCTIONS[full]
            if full.startswith("logging."):
                return PRINTED
            if full.startswith("matplotlib.") or full.startswith("seaborn."):
                return PLOTTED if is_discarded else ""
        kind = self.outputs.get(call)
        if kind in (SAVE, WRITE, TRACK, PRINT):
            return {SAVE: SAVED, WRITE: SAVED, TRACK: LOGGED, PRINT: PRINTED}[kind]
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
            return METHODS[name] if is_discarded or METHODS[name] == PRINTED else ""
        if name.startswith(("add_", "log_", "report_")) and not name.endswith("_"):
            return LOGGED if is_discarded else ""
        return self._of_unknown(name, names, is_discarded)

    def _of_unknown(self, name: str, names: set[str], is_discarded: bool) -> str:
        if not is_discarded or name in CHANGING or name.endswith("_"):
            return ""
        if any(full == quiet or full.startswith(f"{quiet}.") for full in names for quiet in QUIET):
            return ""
        return PASSED

    def _of_function(self, call: ast.Call, scope: Scope, is_discarded: bool) -> str:
        values = self.analysis.evaluate(call.func, scope)
        if not is_discarded or any(isinstance(value, (LocalFunction, LocalClass)) for value in values):
            return ""
        names = {value.name for value in values if isinstance(value, (External, Member))}
        if any(n in MAKING or n.partition(".")[0] in QUIET or n.rpartition(".")[2] in CHANGING for n in names):
            return ""
        return PASSED if names else ""

    def _is_bar(self, node: ast.expr, scope: Scope) -> bool:
        values = self.analysis.evaluate(node, scope)
        if any(isinstance(value, Result) and value.maker in BARS for value in values):
            return True
        made = [b.value for b in (scope.find(node.id) or (scope, []))[1]] if isinstance(node, ast.Name) else []
        return any(isinstance(value, ast.Call) and self.analysis.called(value, scope) & BARS for value in made)


__all__ = ["TRACKER", "Sinks"]

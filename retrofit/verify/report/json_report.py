"""The report of `retrofit verify` as JSON, for programs.

Schema version 1. Keys are never renamed or removed within a version; new ones may appear.

    schema_version   1
    status           "PASS" | "FAIL" | "INCOMPLETE" (nothing failed, and `not_compared` is not empty)
                     | "NOT JUDGED" (no check had anything to judge) | "INTERNAL ERROR" (verify itself failed)
    conclusion       the last line of the terminal output
    meaning          what a PASS means and does not mean; "" for another status
    not_compared     {"samples" | "losses" | "gradients" | "weights": reason}: what a PASS needs and is missing
    script           path, as given
    arguments        [str, ...] of the script
    world_size       number of processes that were compared with one
    seconds          wall time of all runs and checks
    faults           [{summary, check, cause, place, step, value, remedy, explains}, ...]: what is wrong, each cause
                     once, the checks that fail for the same reason in `explains`; empty unless the status is "FAIL"
    verdicts         [{check, title, status, summary, step, value, cause, note, place}, ...]
                     status: "PASS" | "FAIL" | "NOT APPLICABLE" | "ACCEPTED" | "INTERNAL ERROR" (note: the traceback)
                     step: first optimizer step (0-based) where it broke, or null; value, cause, note: str or null
                     place: the line of the script that shows it ("train.py:12 in main"), or null
    causes           {code: {name, explanation, remedy, in_torch}} of the rules that the verdicts name
    curves           {loss_1, loss_n, difference, parameter_difference, lr_1, lr_n: [number per optimizer step],
                     tolerance: number}; a curve that was not recorded is empty or missing
    coverage         [{num_samples, rank_of_sample: {"0": [sample index, ...], ...}}, ...], one item per epoch
    runs             [{name, world_size, seconds, status, command}, ...]
    lines_run        [[path, line], ...]: those that several processes ran, of the lines that `convert --prove` watches
    own_figures      [str, ...]: numbers that rank 0 prints or logs, and that are not those of one process
    controls         [str, ...]: what was made comparable
    environment      {name: value}
    dialect          what distributes the script: "" (the runtime) | "torch" | "accelerate" | "fabric"
    precision        "float64" | "as-is": in which the runs were compared
    kept_batch       "with the global batch kept (RETROFIT_BATCH=global)" | "with batch_size divided by 2" | "" where
                     the script's own start keeps the global batch
    made             {"Date", "Version", "Commit": text}: when, by which kit, of which commit of the project
    repair           what --fix did after a FAIL, else null: {faults, diff, status_after, conclusion_after, written}
                     faults: [{cause, check, summary, repaired, why_not, remedy, tries}, ...]; `why_not` is "" and
                     `remedy` null where it is repaired; tries: [{edit, status, failed, kept}, ...], each an edit that
                     was tried in a copy, with the status and the failed checks of `verify` there
                     diff: of all that was kept, as a unified diff; "" where nothing was repaired
                     status_after, conclusion_after: of the repaired copy; written: with --write, the files are changed

The schema for a program is docs/verify_schema.json.

JSON has no NaN: a number that is not finite is the string "NaN", "Infinity" or "-Infinity", which Python's float()
and JavaScript's Number() read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

from retrofit.verify.verdict import EpochCoverage, Report, RunRecord, Verdict, not_compared, overall_status

from .conclusion import conclusion, meaning
from .faults import Fault, faults
from .remedies import remedy

if TYPE_CHECKING:
    from retrofit.rules.catalog import Rule

SCHEMA_VERSION = 1
CAUSE_FIELDS = {"name": "name", "explanation": "why", "remedy": "remedy", "in_torch": "in_torch"}


def report_as_json(report: Report, causes: Mapping[str, Rule]) -> str:
    """Return `report` as JSON text; a list or table has one item per line, so that even large ones stay readable."""
    named = sorted({verdict.cause for verdict in report.verdicts if verdict.cause} & set(causes))
    content = {
        "schema_version": SCHEMA_VERSION,
        "status": overall_status(report.verdicts),
        "conclusion": conclusion(report),
        "meaning": meaning(report),
        "not_compared": not_compared(report.verdicts),
        "script": report.script,
        "module": report.module,
        "arguments": report.arguments,
        "world_size": report.world_size,
        "seconds": report.seconds,
        "faults": [_fault(fault, report, causes) for fault in faults(report.verdicts)],
        "verdicts": report.verdicts,
        "causes": {
            code: {name: getattr(causes[code], field) for name, field in CAUSE_FIELDS.items()} for code in named
        },
        "curves": report.curves,
        "coverage": report.coverage,
        "runs": report.runs,
        "lines_run": report.lines_run,
        "own_figures": report.own_figures,
        "controls": report.controls,
        "environment": report.environment,
        "dialect": report.dialect,
        "made": report.made,
        "precision": report.precision,
        "kept_batch": report.kept_batch,
        "repair": report.repair,
    }
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {_lines(_plain(value))}" for key, value in content.items()) + "\n}"


def _fault(fault: Fault, report: Report, causes: Mapping[str, Rule]) -> dict[str, Any]:
    verdict = fault.verdict
    rule = causes.get(verdict.cause or "")
    names = ("summary", "check", "cause", "place", "step", "value")
    return {
        **{name: getattr(verdict, name) for name in names},
        "remedy": remedy(rule, report.dialect) if rule else None,
        "explains": [other.check for other in fault.explains],
    }


def _lines(value: Any) -> str:
    """Return `value` as JSON; a list or table gets one line per item."""
    if isinstance(value, dict) and value:
        items = [f"{json.dumps(key)}: {json.dumps(item, allow_nan=False)}" for key, item in value.items()]
        return "{\n    " + ",\n    ".join(items) + "\n  }"
    if isinstance(value, list) and value:
        return "[\n    " + ",\n    ".join(json.dumps(item, allow_nan=False) for item in value) + "\n  ]"
    return json.dumps(value, allow_nan=False)


def _plain(value: Any) -> Any:
    """Return `value` made of what JSON knows; a number of another library becomes a number, all else its text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        number = float(value)
        if math.isfinite(number):
            return number
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if isinstance(value, (Verdict, EpochCoverage, RunRecord)):
        value = vars(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)

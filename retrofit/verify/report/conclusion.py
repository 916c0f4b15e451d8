"""The one line that a whole report adds up to, and what a PASS means."""

from __future__ import annotations

from collections.abc import Mapping

from retrofit.verify.verdict import (
    ACCEPTED,
    COMPARED,
    FAIL,
    INCOMPLETE,
    INTERNAL_ERROR,
    NOT_JUDGED,
    PASS,
    Report,
    count,
    counts,
    duration,
    listed,
    not_compared,
    overall_status,
)

from .faults import Fault, faults

MEANING = (
    "PASS: in the steps that were run, {processes} drew the samples of one process and had its losses, gradients and "
    "weights, apart from rounding. It says nothing about later steps, about speed, or about {}."
)
MOST_SHOWN = 3  # faults in the last line


def conclusion(report: Report) -> str:
    """Return the one line that the whole report adds up to."""
    verdicts, took = report.verdicts, duration(report.seconds)
    status, total = overall_status(verdicts), len(verdicts)
    if status == INTERNAL_ERROR:
        error = next(verdict for verdict in verdicts if verdict.status == INTERNAL_ERROR)
        return (
            f"{INTERNAL_ERROR}: this is an error of retrofit verify, not of the script: {error.summary}; report it "
            f"with the traceback above ({' '.join((error.value or '').split())[:200]})"
        )
    if status == NOT_JUDGED:
        return f"{NOT_JUDGED}: none of {count(total, 'check')} had anything to compare, {took}"
    if status == INCOMPLETE:
        return (
            f"{INCOMPLETE}: not compared: {_grouped(not_compared(verdicts))}. What was compared is the same "
            f"({counts(verdicts)}), {took}"
        )
    if status == FAIL:
        found = faults(verdicts)
        shown = ". Also: ".join(map(_sentence, found[:MOST_SHOWN]))
        more = f". And {count(len(found) - MOST_SHOWN, 'other fault')}" if len(found) > MOST_SHOWN else ""
        number = sum(verdict.status == FAIL for verdict in verdicts)
        return f"{FAIL}: {shown}{more}. {number} of {count(total, 'check')} failed, {took}"
    accepted = sum(verdict.status == ACCEPTED for verdict in verdicts)
    apart = f" apart from {count(accepted, 'accepted difference')}" if accepted else ""
    kept = f"{report.kept_batch}, " if report.kept_batch else ""
    verb = "trains" if report.world_size == 1 else "train"
    return (
        f"{PASS}: {kept}{count(report.world_size, 'process', 'processes')} {verb} the same model as 1{apart}: "
        f"{listed(COMPARED.values())} compared ({counts(verdicts)}), {took}"
    )


def meaning(report: Report) -> str:
    """Return what a PASS means and does not mean; nothing for another outcome."""
    if overall_status(report.verdicts) != PASS:
        return ""
    what = (
        "errors smaller than the rounding of your own precision, in which they ran"
        if report.precision == "as-is"
        else "the rounding of your own precision (float64 was used)"
    )
    return MEANING.format(what, processes=count(report.world_size, "process", "processes"))


def _sentence(fault: Fault) -> str:
    """Return a fault in words, with its place, its rule and its first step."""
    verdict = fault.verdict
    known = [verdict.place and f"at {verdict.place}", verdict.cause]
    if verdict.step is not None:
        known.append(f"from step {verdict.step} on")
    details = ", ".join(filter(None, known))
    return " ".join(verdict.summary.split()) + (f" ({details})" if details else "")


def _grouped(reasons: Mapping[str, str]) -> str:
    """Return "samples (no loader was used); losses and weights (no step was made)": names of one reason together."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(" ".join(reason.split()), []).append(name)
    return "; ".join(f"{listed(group)} ({reason})" for reason, group in names.items())

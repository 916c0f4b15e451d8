"""Operators and random draws that could not be made repeatable."""

from __future__ import annotations

from retrofit.verify.checks.finding import first_few, joined, not_made, why_not
from retrofit.verify.checks.options import CheckOptions
from retrofit.verify.checks.processes.own_draws import draws_apart
from retrofit.verify.evidence import Runs
from retrofit.verify.trace.events import NondeterministicOperator, PairedRows, UncontrolledDraw
from retrofit.verify.verdict import Verdict, not_applicable, passed


def determinism(runs: Runs, options: CheckOptions) -> Verdict:
    """List what could not be repeated exactly. For information: the other checks allow for it."""
    check, title = "determinism", "nothing random was left uncontrolled"
    reason = not_made(runs, "many")
    if reason:
        return not_applicable(check, title, reason)
    controlled = [runs[name] for name in ("many", "reference") if name in runs]
    traces = [rank for run in runs.values() for rank in run.ranks]
    operators = list(dict.fromkeys(event.op for rank in traces for event in rank.of(NondeterministicOperator)))
    draws = [event for run in controlled for rank in run.ranks for event in rank.of(UncontrolledDraw)]
    places = list(dict.fromkeys(f"{event.op} at {event.where}" for event in draws))
    notes = [f"no deterministic version of {first_few(operators)}"] if operators else []
    notes += [f"draws that belong to no sample: {first_few(places)}"] if places else []
    if notes:
        return not_applicable(check, title, "some results vary by nature", joined(notes))
    if not runs["many"].num_steps:
        return not_applicable(check, title, why_not(runs["many"], "no optimizer step was made"))
    paired = list(dict.fromkeys(event.where for rank in runs["many"].ranks for event in rank.of(PairedRows)))
    pairs = f"each rank pairs its own samples with each other ({first_few(paired)}), as with a smaller batch"
    own = draws_apart(runs["many"])
    numbers = f"each rank draws a number of its own for its batch ({first_few(own)}), as with a smaller batch"
    notes = [pairs] * bool(paired) + [numbers] * bool(own)
    found = "every operator has a deterministic version, every draw belongs to a sample"
    return passed(check, title, found, joined(notes))

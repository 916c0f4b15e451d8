"""What rank 0 writes about samples and for whole epochs is judged: tables, histories, tensors that are no weights."""

from __future__ import annotations

import pytest
from verify_evidence import change, insert, sound_runs

from retrofit.verify.checks import run_checks
from retrofit.verify.trace.events import CollectiveCall, FileSave, IterationStart, ProcessExit

NAMES = [f"picture_{number}.png" for number in range(8)]
KINDS = ["oak", "elm", "oak", "ash", "elm", "elm", "oak", "ash"]
IN_RANK_ORDER = KINDS[::2] + KINDS[1::2]


def table(names, *columns):
    return "".join(f"{','.join(row)}\n" for row in zip(names, *columns))


def verdicts_with(ours, theirs, path="predictions.csv"):
    runs = sound_runs()
    runs["many"].texts[path], runs["reference"].texts[path] = ours, theirs
    return {verdict.check: verdict for verdict in run_checks(runs)}


WRONG = {
    "values in rank order": (table(NAMES, IN_RANK_ORDER), "another order"),
    "one column in rank order": (table(IN_RANK_ORDER), "another order"),
    "rows of rank 0": (table(NAMES[::2], KINDS[::2]), "rank 0's share"),
}
RIGHT = {
    "the same": (table(NAMES, KINDS), "predictions.csv"),
    "whole rows in another order": (table(NAMES[::2] + NAMES[1::2], IN_RANK_ORDER), "predictions.csv"),
    "of one rank": (table(NAMES[::2], KINDS[::2]), "predictions_rank0.csv"),
}


@pytest.mark.parametrize("name", WRONG)
def test_tables_that_do_not_fit_the_samples_fail(name):
    ours, words = WRONG[name]
    theirs = table(KINDS) if name.startswith("one") else table(NAMES, KINDS)
    verdict = verdicts_with(ours, theirs)["metrics"]
    assert (verdict.status, verdict.cause) == ("FAIL", "RF401") and words in verdict.summary


@pytest.mark.parametrize("name", RIGHT)
def test_tables_of_all_samples_are_not_accused(name):
    ours, path = RIGHT[name]
    assert verdicts_with(ours, table(NAMES, KINDS), path)["metrics"].status == "PASS"


def test_figures_of_the_training_in_a_history_are_those_of_all_ranks():
    theirs = "".join(f"{{'epoch': {number}, 'train_loss': {0.5 - 0.1 * number:.6f}}}\n" for number in range(2))
    ours = theirs.replace("0.5", "0.625")
    verdict = verdicts_with(ours, theirs, "history.json")["metrics"]
    assert verdict.status == "FAIL" and "a figure of a whole epoch" in verdict.summary
    assert verdicts_with(theirs, theirs, "history.json")["metrics"].status == "PASS"


@pytest.mark.parametrize("norm", [3.0, 1.5])
def test_other_tensors_than_weights_are_those_of_one_process(norm):
    runs = sound_runs()
    for name, value in (("many", norm), ("reference", 3.0)):
        saved = FileSave("counts.pt", {"confusion": "float32[2, 2]"}, {"confusion": [value, value / 2]})
        insert(runs[name], [0], ProcessExit, saved)
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "metrics")
    assert verdict.status == ("PASS" if norm == 3.0 else "FAIL")
    assert norm == 3.0 or "'confusion' in counts.pt" in verdict.summary


def test_a_group_that_one_rank_makes_alone_is_a_missing_collective_call():
    runs = sound_runs()
    insert(runs["many"], [0], IterationStart, CollectiveCall(-1, "new_group", 0, None, None, in_backward=False))
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "collectives")
    assert (verdict.status, verdict.cause) == ("FAIL", "RF402")
    assert "rank 0 calls new_group" in verdict.value and "None" not in verdict.value


def test_a_random_stream_that_is_restored_on_rank_0_alone_fails():
    runs = sound_runs()
    having = {"grad_enabled": True, "epoch": 1}
    change(runs["many"], IterationStart, [0, 1], having, streams={"torch": "drawn from"})
    change(runs["resumed"], IterationStart, [0], having, streams={"torch": "drawn from"})
    change(runs["resumed"], IterationStart, [1], having, streams={"torch": "fresh"})
    verdict = next(verdict for verdict in run_checks(runs) if verdict.check == "resume")
    assert (verdict.status, verdict.cause) == ("FAIL", "RF507") and "on rank 1" in verdict.summary

"""Figures of evaluations that a script writes to CSV and JSON files of its own and prints nowhere."""

from __future__ import annotations

import pytest
from verify_evidence import sound_runs

from retrofit.verify.checks import CheckOptions
from retrofit.verify.checks.output.metrics import metrics
from retrofit.verify.checks.output.written_figures import figures_in_files
from retrofit.verify.evidence import load_run
from retrofit.verify.trace.events import FileChange, line_of

# For each: a file of one process, what is in it where the ranks do not combine their shares, and what is judged.
TEXTS = {
    "table": ("epoch,train,val,acc\n0,2.1,1.5,0.25\n1,1.9,1.25,0.5\n", ("0.5", "0.75"), True),
    "lines of JSON": (
        '{"step": 5, "loss": 0.4, "ppl": 8.5}\n{"step": 9, "loss": 0.3, "ppl": 7.25}\n',
        ("7.25", "7.5"),
        True,
    ),
    "the last one": ('{\n  "epoch": 1,\n  "val_loss": 0.75\n}\n', ("0.75", "0.8"), True),
    "words": ("epoch 0 f1 0.5\nepoch 1 f1 0.75\n", ("0.75", "0.7"), True),
    "the loss of training steps": ('{"step": 5, "loss": 0.4}\n{"step": 9, "loss": 0.3}\n', ("0.3", "0.31"), False),
    "training by its name": ("epoch,train_acc\n0,0.25\n1,0.5\n", ("0.5", "0.6"), True),
    "a figure of each sample": ("score 0.5\nscore 0.25\nscore 0.125\n", ("0.125", "0.2"), False),
    "numbers without names": ("0 0.5\n1 0.75\n", ("0.75", "0.7"), False),
    "seconds": ("epoch,seconds\n0,1.5\n1,1.25\n", ("1.25", "1.5"), False),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_figure_of_an_evaluation_in_a_file_is_that_of_one_process(name: str) -> None:
    text, (own, other), is_judged = TEXTS[name]
    runs = sound_runs()
    for run in runs.values():
        run.texts = {"log.txt": text}
    assert metrics(runs, CheckOptions()).status == "PASS"
    is_of_evaluation = is_judged and "training" not in name
    assert bool(figures_in_files(runs["many"])) == (is_of_evaluation or name == "table")
    runs["many"].texts = {"log.txt": text.replace(own, other)}
    verdict = metrics(runs, CheckOptions())
    assert (verdict.status, verdict.cause) == (("FAIL", "RF401") if is_judged else ("PASS", None)), verdict
    runs["many"].texts = {"log_rank0.txt": text.replace(own, other)}
    assert metrics(runs, CheckOptions()).status == "PASS"


def test_the_files_that_rank_0_has_written_are_kept(tmp_path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for name in ("log.csv", "notes.txt", "weights.pt"):
        (project / name).write_text("acc 0.5\n")
    events = [FileChange("write", name) for name in ("log.csv", "weights.pt", "gone.csv", str(project / "notes.txt"))]
    (tmp_path / "rank0.jsonl").write_text("".join(line_of(event, 0.0, 0) for event in events))
    assert load_run("many", tmp_path, 1).texts == {"log.csv": "acc 0.5\n"}

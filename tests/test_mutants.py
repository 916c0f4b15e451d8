"""benchmarks/mutants.py: each operator makes programs, and what verify says of a mutant is judged."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import mutants
from mutation import OPERATORS, mutations
from mutation.reach import marked
from mutation.source import Source

from retrofit.rules.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = [
    *sorted((ROOT / "benchmarks" / "mutation" / "subjects").glob("*/train.py")),
    *sorted((ROOT / "tests" / "verify" / "projects").glob("*/train.py")),
]
# What no script of those has, in the words of the runtime.
FURTHER = """\
import os
import torch
import multigpu as rd
model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(net)
embeddings = GatherLayer.apply(embeddings)
if rank == 0:
    writer.add_scalar("loss", 1.0, step)
for p in model.parameters():
    dist.all_reduce(p.grad)
train, val = random_split(data, [3, 4])
scheduler = StepLR(optimizer, 3)
os.makedirs("out")
"""


def test_each_operator_makes_a_program_and_names_known_rules() -> None:
    made = set()
    for text in (*(path.read_text() for path in SCRIPTS), FURTHER):
        for operator, mutation in mutations(text):
            compile(mutation.text, "mutant", "exec", dont_inherit=True)
            assert mutation.text != text
            made.add(operator.name)
    assert made == set(OPERATORS)
    assert {code for operator in OPERATORS.values() for code in operator.causes} <= set(CATALOG)
    assert all(operator.title for operator in OPERATORS.values())


def test_an_edit_keeps_every_other_byte() -> None:
    text = "import torch\n\nif x:\n\tmodel = DDP(net)   # wrapped\n\tküche = 1\n"
    source = Source(text)
    statement = source.statement(next(source.calls("DDP")))
    assert source.removed(statement).text == text.replace("model = DDP(net)", "pass")
    assert source.with_lines(statement, ["a()"], ["b()"]).text == text.replace("\tmodel", "\tb()\n\tmodel").replace(
        "wrapped\n", "wrapped\n\ta()\n"
    )
    guarded = source.guarded(statement, "first")
    assert guarded.text == text.replace("model = DDP(net)", "if first:\n\t    model = DDP(net)")
    assert (guarded.line, guarded.code) == (4, "model = DDP(net)")


def outcome(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    failed: list[tuple[str, str]],
    alone: str = "finished",
    own_figures: int = 0,
    is_reached: bool = True,
) -> str:
    verdicts = [{"status": "FAIL", "check": check, "cause": cause} for check, cause in failed]
    report = {"verdicts": verdicts, "runs": [{"name": "one", "status": alone}], "conclusion": "said"}
    report["own_figures"] = ["the printed loss: 1 with 2 processes, 2 with 1"] * own_figures
    monkeypatch.setattr(mutants, "run", lambda *_: (status, report))
    monkeypatch.setattr(mutants, "is_reached", lambda mutant, args: is_reached)
    subject = mutants.Subject("s", Path(), [])
    mutant = mutants.Mutant(subject, "drop_set_epoch", "train.py", 3, "set_epoch(1)", b"")
    before = {"s sound": {"failed": [["metrics", "RF401"]], "own_figures": 1}}
    return mutants.judged_mutant(mutant, argparse.Namespace(time_limit=1.0), before)["outcome"]


def test_what_is_said_of_a_mutant_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, 1, [("reshuffle", "RF101")]) == mutants.CAUGHT
    assert outcome(monkeypatch, 1, [("loss", "RF301")]) == mutants.OTHER_CAUSE
    assert outcome(monkeypatch, 1, [("metrics", "RF401")]) == mutants.MISSED, "the sound script fails so, too"
    assert outcome(monkeypatch, 0, []) == mutants.MISSED
    assert outcome(monkeypatch, 0, [], own_figures=1) == mutants.MISSED, "the sound script has that one, too"
    assert outcome(monkeypatch, 0, [], own_figures=2) == mutants.SAID
    assert outcome(monkeypatch, 0, [], is_reached=False) == mutants.NOT_REACHED
    assert outcome(monkeypatch, 1, [("completes", "RF001")], alone="failed (rank 0: 1)") == mutants.NOT_RUN


def test_the_table_counts_what_trains_as_before_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutants, "HERE", tmp_path)
    (tmp_path / "equivalent.json").write_text('[{"key": "two", "reason": "no sample is repeated"}]')
    row = {"operator": "drop_set_epoch", "subject": "s", "said": ""}
    rows = [
        {**row, "key": "one", "outcome": mutants.CAUGHT},
        {**row, "key": "two", "outcome": mutants.MISSED},
        {**row, "key": "three", "outcome": mutants.MISSED},
        {**row, "key": "s sound", "operator": mutants.SOUND, "outcome": "PASS"},
        {**row, "key": "s sound 1", "operator": mutants.SOUND, "outcome": "PASS"},
    ]
    text = mutants.table(rows)
    assert "| **All** | 2 | 1 (50.0%) | 1 | 0 | 1 | 1 | 0 |" in text
    assert "2 runs of 1 sound scripts, 0 with a finding" in text


def test_a_mutant_is_judged_by_runs(forked_python: object) -> None:
    args = argparse.Namespace(time_limit=60.0)
    content = ROOT / "benchmarks" / "mutation" / "subjects"
    subject = mutants.Subject(
        "stream_ema", content / "stream_ema", ["--epochs", "2"], options=["--batch-flag", "batch_size"]
    )
    subject = mutants.Subject(
        subject.name, subject.folder, ["--epochs", "2", "--batch_size", "4"], options=subject.options
    )
    done = {f"{subject.name} {mutants.SOUND}": mutants.judged_subject(subject, 0, args)}
    assert done["stream_ema sound"]["outcome"] == "PASS"
    mutant = next(one for one in mutants.mutants_of(subject) if one.operator == "loss_times_ranks")
    assert mutants.judged_mutant(mutant, args, done)["outcome"] == mutants.CAUGHT


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (2, "def f(x):\n    open('M', 'w').close()\n    y = (x +\n         1)\n    return y\n"),
        (3, "def f(x):\n    open('M', 'w').close()\n    y = (x +\n         1)\n    return y\n"),
        (4, "def f(x):\n    y = (x +\n         1)\n    open('M', 'w').close()\n    return y\n"),
    ],
)
def test_a_mark_is_made_before_the_statement_of_a_line(line: int, expected: str) -> None:
    assert marked("def f(x):\n    y = (x +\n         1)\n    return y\n", line, Path("M")) == expected


def test_a_statement_after_another_on_its_line_changes_nothing_else() -> None:
    assert marked("if x: y = 1\n", 1, Path("M")) in ("if x: y = 1\n", "open('M', 'w').close()\nif x: y = 1\n")

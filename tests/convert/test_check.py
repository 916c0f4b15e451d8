"""`retrofit check`: places, formats, comments that take a finding as intended, exit statuses."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from convert.test_placement import script_of

from retrofit.cli import main

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parent / "projects" / "main_function"
SOUND = ROOT / "tests" / "verify" / "projects"  # trained on several processes by what verify is tested with


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["check", *arguments])
    shown = capsys.readouterr()
    return status, shown.out, shown.err


def test_findings_have_a_place_and_a_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown, _ = check(capsys, str(PROJECT / "train.py"))
    lines = shown.splitlines()
    assert status == 1 and lines[-1] == f"{len(lines) // 2} findings in {PROJECT / 'train.py'}"
    source = (PROJECT / "train.py").read_text().splitlines()
    (place,) = [line for line in lines if " RF103 " in line]
    path, line, column, text = place.split(":", 3)
    assert path == "train.py" and "DataLoader" in source[int(line) - 1][int(column) - 1 :]
    assert text == " RF103 every process trains on all samples"
    assert lines[lines.index(place) + 1].startswith("    help: loader = rd.distribute_loader(loader)")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown, _ = check(capsys, str(PROJECT / "train.py"), "--format", "json")
    report = json.loads(shown)
    assert status == 1 and report["schema_version"] == 1
    (finding,) = [finding for finding in report["findings"] if finding["code"] == "RF103"]
    assert finding["name"] == "loader-not-sharded" and finding["path"] == "train.py" and finding["fixable"]


def test_a_figure_that_convert_reduces_is_fixable(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script_of("print((model(x) > y).sum().item())", "print(y.max().item())"))
    report = json.loads(check(capsys, str(tmp_path / "train.py"), "--format", "json")[1])
    fixable = {finding["code"]: finding["fixable"] for finding in report["findings"]}
    assert fixable["RF407"] and not fixable["RF406"]


def test_github(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script = tmp_path / "a,b:c.py"
    script.write_text((PROJECT / "train.py").read_text())
    _, shown, _ = check(capsys, str(script), "--format", "github")
    assert all(line.startswith("::warning file=a%2Cb%3Ac.py,line=") for line in shown.splitlines())
    assert ",title=RF103 loader-not-sharded::every process trains on all samples; loader = " in shown


def test_sarif(capsys: pytest.CaptureFixture[str]) -> None:
    _, shown, _ = check(capsys, str(PROJECT / "train.py"), "--format", "sarif")
    report = json.loads(shown)
    (run,) = report["runs"]
    known = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert report["version"] == "2.1.0" and {result["ruleId"] for result in run["results"]} <= known
    region = run["results"][0]["locations"][0]["physicalLocation"]
    assert region["artifactLocation"]["uri"] == "train.py" and region["region"]["startLine"] > 1


@pytest.mark.parametrize(
    ("comment", "is_found"),
    [
        ("# retrofit: ignore[RF103]", False),
        ("# retrofit: ignore[RF501, RF103] it is meant so", False),
        ("# retrofit: ignore", False),
        ("# retrofit: ignore[RF501]", True),
        ("# ignore[RF103]", True),
    ],
)
def test_a_comment_suppresses_a_finding(
    comment: str, is_found: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = (PROJECT / "train.py").read_text().splitlines()
    _, shown, _ = check(capsys, str(PROJECT / "train.py"), "--format", "json")
    (finding,) = [finding for finding in json.loads(shown)["findings"] if finding["code"] == "RF103"]
    lines[finding["line"] - 1] += f"  {comment}"
    (tmp_path / "train.py").write_text("\n".join(lines) + "\n")
    _, shown, _ = check(capsys, str(tmp_path / "train.py"))
    assert (" RF103 " in shown) is is_found


def test_a_converted_project_is_clean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text((PROJECT / "train.py").read_text())
    main(["convert", str(tmp_path / "train.py"), "--write"])
    capsys.readouterr()
    status, shown, _ = check(capsys, str(tmp_path / "train.py"))
    assert status == 0 and shown == f"nothing found in {tmp_path / 'train.py'}\n"


def test_the_reference_project_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    status, shown, _ = check(capsys, str(ROOT / "train.py"))
    assert (status, shown) == (0, f"nothing found in {ROOT / 'train.py'}\n")


@pytest.mark.parametrize("script", sorted(SOUND.glob("*/train.py")), ids=lambda script: script.parent.name)
def test_sound_projects_are_clean(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, shown, _ = check(capsys, str(script))
    assert (status, shown) == (0, f"nothing found in {script}\n")


def test_the_script_that_trains_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(PROJECT.parent / "trainer_class_in_module", tmp_path / "one")  # its loop is in another module
    (tmp_path / "one" / "plot.py").write_text("print('no training')\n")
    assert f" findings in {tmp_path / 'one' / 'train.py'}" in check(capsys, str(tmp_path / "one"))[1]
    monkeypatch.chdir(tmp_path / "one")
    assert check(capsys)[1].endswith(" findings in train.py\n")
    assert main(["convert"]) == 0 and "--- a/train.py" in capsys.readouterr().out
    shutil.copy("train.py", "train_again.py")
    status, _, error = check(capsys)
    assert status == 2 and "several scripts in . train; give one of: train.py, train_again.py" in error
    (tmp_path / "none").mkdir()
    assert "no script in" in check(capsys, str(tmp_path / "none"))[2]


IN_CLOSURE = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in loader:

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(STEP)
"""


@pytest.mark.parametrize("step", ["closure", "closure=closure", "lambda: closure()"])
def test_a_training_in_a_closure_is_found_and_not_converted(
    step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(IN_CLOSURE.replace("STEP", step))
    (tmp_path / "plot.py").write_text("print('no training')\n")
    assert f" findings in {tmp_path / 'train.py'}" in check(capsys, str(tmp_path))[1]
    assert main(["convert", str(tmp_path)]) == 1
    assert "train.py:15:5: RF003 the optimizer's step runs the closure itself" in capsys.readouterr().err


def test_usage_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(capsys, str(tmp_path / "gone.py"))[0] == 2
    (tmp_path / "old.py").write_text("print 'x'\n")
    status, _, error = check(capsys, str(tmp_path / "old.py"))
    assert status == 2 and "Python 2 syntax" in error


def test_a_module_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.py").write_text("print 'x'\n")
    (tmp_path / "train.py").write_text("import old\n")
    status, _, error = check(capsys, str(tmp_path / "train.py"))
    assert status == 0 and "left out: old.py:1: Python 2 syntax" in error


def test_nothing_of_the_project_is_imported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys\nopen('was_run', 'w')\nsys.exit(5)\n")
    command = [sys.executable, "-m", "retrofit", "check", "train.py"]
    environ = {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0 and not (tmp_path / "was_run").exists()

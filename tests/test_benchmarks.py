"""The benchmarks run and fill their tables, at the smallest sizes; nothing is said about times."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.fsdp as fsdp
from two_hosts import why_not
from verify.projects.launch import Launcher

ROOT = Path(__file__).resolve().parent.parent
UNWANTED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def run(name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / name), *arguments]
    environ = {key: value for key, value in os.environ.items() if key not in UNWANTED}
    environ.update(OMP_NUM_THREADS="1", **variables)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)


def rows(page: Path) -> list[list[str]]:
    """Return the cells of the document's tables, their titles and rules left out."""
    lines = [line.strip("| ").split(" | ") for line in page.read_text().splitlines() if line.startswith("|")]
    return [
        cells for number, cells in enumerate(lines) if not {"---"} & {*cells, *lines[min(number + 1, len(lines) - 1)]}
    ]


@pytest.mark.slow
def test_the_speed_up_table(tmp_path: Path) -> None:
    page, picture = tmp_path / "scaling.md", tmp_path / "scaling.png"
    sizes = ["--crop_size", "32", "--batchsize", "2", "--steps", "1", "--rounds", "1"]
    ended = run("scaling.py", *sizes, "--device", "cpu", "--plot", str(picture), "--output", str(page))
    assert ended.returncode == 0, ended.stderr
    found = {(strategy, devices): (rate, ratio) for strategy, devices, rate, ratio in rows(page)}
    names = [("single", "1"), *((name, n) for name in ("dp", "ddp", "fsdp") for n in "12"), ("ddp by hand", "2")]
    assert list(found) == names
    for (strategy, _), (rate, ratio) in found.items():
        if strategy == "dp":
            assert ratio == "dp needs GPUs: not measured here"
        elif strategy == "fsdp" and not hasattr(fsdp, "fully_shard"):
            assert ratio == "fsdp needs torch 2.6: not measured here"
        else:
            assert float(rate.split()[0]) > 0 and re.fullmatch(r"[\d.]+ \([\d.]+ \.\. [\d.]+\)", ratio)
    assert found["single", "1"][1] == "1.000 (1.000 .. 1.000)"
    assert "hand-written DDP loop" in ended.stdout and "(scaling.png)" in page.read_text()
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_table_of_communication_hooks(tmp_path: Path) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(f"no two hosts: {reason}")
    page = tmp_path / "comm_hooks.md"
    sizes = [
        "--model",
        "squeezenet1_1",
        "--batchsize",
        "2",
        "--steps",
        "1",
        "--rounds",
        "1",
        "--mbit_per_s",
        "1000",
        "0",
    ]
    ended = run("comm_hooks.py", *sizes, "--output", str(page))
    if "cannot add bfloat16" in ended.stderr:
        pytest.skip(f"gloo of torch {torch.__version__} cannot add bfloat16")
    assert ended.returncode == 0, ended.stderr
    hooks, cells = ["none", "fp16", "bf16", "powersgd"], rows(page)
    times, sent = [row for row in cells if len(row) == 4], [row for row in cells if len(row) == 5]
    assert [row[:2] for row in times] == [[network, hook] for network in ("1 Gbit/s", "no limit") for hook in hooks]
    assert [row[0] for row in sent] == hooks
    for _, theory, _, measured, loss in sent:
        assert float(theory) <= float(measured) + 0.01 < 1.2 * float(theory) + 0.1  # MB; headers come on top
        assert 0 < float(loss) < 20
    assert [row[2] for row in sent[:3]] == ["1.0000", "0.5000", "0.5000"] and float(sent[3][2]) < 0.1


def test_without_two_hosts_nothing_is_measured(launcher: Launcher) -> None:
    ended = launcher.run(ROOT, str(ROOT / "benchmarks" / "comm_hooks.py"), [], PATH="")
    assert ended["statuses"] == [2]
    (text,) = ended["outputs"]
    assert text.startswith("no two hosts here: ") and text.endswith("; nothing was measured\n")


def test_the_seconds_of_a_conversion() -> None:
    ended = run("convert_speed.py", "--sizes", "100", "--rounds", "1")
    assert ended.returncode == 0, ended.stderr
    _, row = ended.stdout.splitlines()
    assert re.fullmatch(r" *\d+ +\d+\.\d\d s +\d+\.\d\d s +\d+ ms +\d+", row)


@pytest.mark.slow
def test_a_slowdown_is_put_into_a_training_and_judged() -> None:
    ended = run("why_slowdowns.py", "--seeds", "1", "--only", "forward", "--projects", "mlp", "--steps", "16")
    assert ended.returncode == 0, ended.stderr
    assert '"kind": "forward"' in ended.stdout and "of 1 slowdowns named" in ended.stdout


@pytest.mark.slow
def test_what_the_instruments_cost_is_measured_in_turns() -> None:
    ended = run("why_overhead.py", "--pairs", "2", "--block", "2", "--projects", "mlp")
    assert ended.returncode == 0, ended.stderr
    assert re.search(r"mlp: \d\.\d+ \(quartiles .* in 2 pairs", ended.stdout)

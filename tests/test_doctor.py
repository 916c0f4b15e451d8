"""`retrofit doctor` as a command: its report on a terminal, in a file and as JSON, its exit status, its manners."""

from __future__ import annotations

import argparse
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from doctor_machine import ROOT, doctor, doctor_findings, environment
from rich.console import Console

from retrofit.doctor import command, examine
from retrofit.doctor.finding import FAIL, OK, SKIP, WARN, Finding, Plan
from retrofit.doctor.gpu.torch_facts import TorchFacts
from retrofit.doctor.report import plain_lines, print_report, report_as_json, summary
from retrofit.doctor.system.env_vars import check_launcher, check_switches, nccl_settings

FINDINGS = [
    Finding("shared memory", FAIL, "/dev/shm: 64 MiB free of 64 MiB", "docker run --ipc=host, or --shm-size=8g"),
    Finding("PyTorch", OK, "2.4.0"),
    Finding("all-reduce, gloo", WARN, "first line\nrank 0: \x1b[31m[red]\x1b[0m " + "word " * 40, "look at it"),
    Finding("GPUs", SKIP, "none"),
]


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(1)
        yield server.getsockname()[1]


@pytest.mark.usefixtures("forked_python")
def test_a_whole_examination_as_json() -> None:
    ended = doctor("--json", "--workers", "1", "--nproc", "2", "--deadline", "200", timeout_s=300)
    report = json.loads(ended.stdout)
    assert (report["schema_version"], report["plan"]) == (1, {"ranks": 2, "workers": 1, "nnodes": 1})
    assert ended.returncode == (1 if report["status"] == FAIL else 0)
    by_name = {finding["name"]: finding for finding in report["findings"]}
    assert len(by_name) == len(report["findings"]) > 20, "two findings of one name"
    assert by_name["all-reduce, gloo"]["status"] == OK
    measured = report["all_reduce"][0]["measured"]
    assert measured[-1]["bytes"] == 2**26 and measured[-1]["busbw_gb_per_s"] > 0
    assert "this check failed" not in ended.stdout
    assert "all-reduce of 2 processes over gloo" in ended.stderr and "asking torch" in ended.stderr


@pytest.mark.usefixtures("forked_python")
def test_a_port_in_use_exits_with_status_1(taken_port: int) -> None:
    ended = doctor("--no-allreduce", MASTER_PORT=str(taken_port))
    assert ended.returncode == 1
    assert f"FAIL  port {taken_port}: used by pid {os.getpid()}" in ended.stdout
    assert ended.stdout.splitlines()[-1].endswith("fix what is FAIL before you start")
    assert "SKIP  all-reduce: not asked for" in ended.stdout and "\x1b" not in ended.stdout


def test_a_project_with_its_own_runtime_and_modules_named_like_those_of_python(tmp_path: Path) -> None:
    (tmp_path / "retrofit").mkdir()
    (tmp_path / "retrofit" / "__init__.py").write_text("raise SystemExit('the project of the user was imported')")
    (tmp_path / "random.py").write_text("raise SystemExit('the project of the user was imported')")
    program = f"import sys; sys.path[0] = {str(ROOT)!r}; {_command_line()}"
    arguments = ["doctor", "--json", "--deadline", "200"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=tmp_path,
        env={**environment(), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode in (0, 1), ended.stderr
    found = {finding["name"]: finding["status"] for finding in json.loads(ended.stdout)["findings"]}
    assert found["PyTorch"] == found["all-reduce, gloo"] == OK


def _command_line() -> str:
    return (
        "import argparse; from retrofit.doctor import command; parser = argparse.ArgumentParser(); "
        "command.add_parser(parser.add_subparsers()); sys.exit(command.run(parser.parse_args()))"
    )


def test_without_torch_the_rest_is_still_examined(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    # The kit's own folder comes first in the children's path; a site folder, as of pip, comes after it.
    found = doctor_findings(PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert found["PyTorch"]["status"] == FAIL and "no torch here" in found["PyTorch"]["value"]
    assert found["launcher variables"]["status"] == found["all-reduce"]["status"] == SKIP
    assert found["localhost"]["status"] == OK


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nproc", "0"],
        ["--workers", "-1"],
        ["--workers", "many"],
        ["--port", "70000"],
        ["--deadline", "1"],
        ["--nosuch"],
        ["--json="],
        ["surplus"],
    ],
)
def test_wrong_usage_ends_with_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _parser().parse_args(["doctor", *arguments])
    assert ended.value.code == 2 and "error:" in capsys.readouterr().err


def test_the_help_has_defaults_and_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["doctor", "--help"])
    text = capsys.readouterr().out
    examples = [line.split("  ")[1].strip() for line in text.splitlines() if line.startswith("  retrofit doctor")]
    assert len(examples) >= 4
    for example in examples:
        _parser().parse_args(example.split(" > ")[0].split()[1:])
    assert text.count("(default:") == 5 and max(map(len, text.splitlines())) <= 120


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="retrofit")
    command.add_parser(parser.add_subparsers())
    return parser


def test_a_check_that_breaks_does_not_end_the_examination(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> Finding:
        raise OSError("no such file")

    monkeypatch.setattr(examine, "ask_torch", TorchFacts)
    monkeypatch.setattr(examine, "check_shared_memory", broken)
    found = examine.examine(examine.Request(), {}, lambda text: None).findings
    broken_one = next(one for one in found if one.name == "shared memory")
    assert broken_one.status == WARN and broken_one.value == "this check failed: OSError: no such file"
    assert any(one.name == "clock" for one in found)


def test_missing_packages_of_the_command_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "psutil" else object())
    assert command.run(_parser().parse_args(["doctor"])) == 2
    assert "error: psutil is not installed for" in capsys.readouterr().err


def test_an_interruption_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(examine, "ask_torch", interrupted)
    assert command.run(_parser().parse_args(["doctor"])) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    console = Console(width=width, force_terminal=True, file=io.StringIO(), color_system=None)
    print_report(Plan(), FINDINGS, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= min(width, 120)
    words = [line[:4] for line in lines if line[:4] in (OK + "  ", WARN, FAIL, SKIP)]
    assert words == [SKIP, OK + "  ", WARN, FAIL], "what is wrong comes last"
    text = "".join(lines)
    assert "\x1b[31m" not in text and "\\x1b[31m[red]" in text, "a process's output is shown as it is, and does nothing"


def test_without_a_terminal_plain_lines_are_printed() -> None:
    console = Console(file=io.StringIO())
    print_report(Plan(), FINDINGS, console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    at = lines.index("FAIL  shared memory: /dev/shm: 64 MiB free of 64 MiB")
    assert lines[at + 1] == "      -> docker run --ipc=host, or --shm-size=8g"
    assert lines[-1] == "1 OK, 1 WARN, 1 FAIL, 1 SKIP: fix what is FAIL before you start"
    assert len(plain_lines(Plan(), FINDINGS)) == len([line for line in lines if not line.startswith("        ")])


def test_a_terminal_that_cannot_show_everything() -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_report(Plan(), [Finding("x", OK, "12 µs")], Console(file=ascii_only))
    ascii_only.seek(0)
    assert "12 \\xb5s" in ascii_only.read()


def test_the_summary() -> None:
    assert summary([FINDINGS[1]]) == "1 OK, 0 WARN, 0 FAIL, 0 SKIP: nothing to fix"
    assert summary(FINDINGS[1:3]).endswith("nothing to fix, but read what is WARN")
    assert json.loads(report_as_json(Plan(), FINDINGS[1:], {}))["status"] == OK
    assert json.loads(report_as_json(Plan(), FINDINGS, {}))["status"] == FAIL


def test_importing_the_command_imports_nothing_heavy() -> None:
    code = f"import sys; {_command_line().split('; command.add')[0].replace('import argparse', 'import argparse')}; "
    code += "command.add_parser(parser.add_subparsers()); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert "retrofit.doctor.command" in loaded
    assert loaded & {"torch", "numpy", "rich", "psutil", "gpustat", "retrofit.doctor.examine"} == set()


@pytest.mark.parametrize(
    ("variables", "status", "words"),
    [
        ({}, OK, "none set"),
        ({"RANK": "0"}, FAIL, "no WORLD_SIZE"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, WARN, "WORLD_SIZE=4 is set in this shell"),
        ({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "x"}, OK, "by a launcher"),
        ({"RANK": "5", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, FAIL, "contradictory"),
        ({"RANK": "x", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, FAIL, "whole number"),
    ],
)
def test_a_launchers_variables(variables: dict[str, str], status: str, words: str) -> None:
    """What `read_environment` says is asked for in this process here, and in another one in the tests above."""
    from retrofit.distributed.process.environment import read_environment

    try:
        place = read_environment(variables)
        facts = TorchFacts(torch="2.4", launcher=place.launcher, rank=place.rank, world_size=place.world_size)
    except ValueError as error:
        facts = TorchFacts(torch="2.4", place_error=str(error))
    found = check_launcher(facts, variables)
    assert found.status == status and words in found.value


def test_half_a_launchers_variables_in_a_real_run() -> None:
    found = doctor_findings("--no-allreduce", RANK="0", CUDA_LAUNCH_BLOCKING="1")
    assert found["launcher variables"]["status"] == FAIL and "no WORLD_SIZE" in found["launcher variables"]["value"]
    assert found["debug switches"]["status"] == WARN


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({}, OK),
        ({"CUDA_LAUNCH_BLOCKING": "1"}, WARN),
        ({"CUDA_LAUNCH_BLOCKING": "0"}, OK),
        ({"NCCL_P2P_DISABLE": "1"}, WARN),
        ({"NCCL_IB_DISABLE": "1"}, WARN),
        ({"NCCL_DEBUG": "info"}, WARN),
        ({"NCCL_DEBUG": "WARN"}, OK),
        ({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}, WARN),
        ({"TORCH_DISTRIBUTED_DEBUG": "INFO"}, OK),
    ],
)
def test_switches_for_debugging(variables: dict[str, str], status: str) -> None:
    found = check_switches(variables, files=())
    assert found.status == status and all(name in found.value + found.remedy for name in variables if status == WARN)


def test_nccls_configuration_files(tmp_path: Path) -> None:
    machine, user = tmp_path / "nccl.conf", tmp_path / ".nccl.conf"
    machine.write_text("# of the administrator\nNCCL_IB_DISABLE=1\nNCCL_DEBUG = INFO\n#NCCL_P2P_DISABLE=1\n")
    user.write_text("NCCL_DEBUG=WARN\nNCCL_SOCKET_IFNAME==ens1f0\n")
    files = (machine, user, tmp_path / "none")
    expected = {"NCCL_IB_DISABLE": "1", "NCCL_DEBUG": "WARN", "NCCL_SOCKET_IFNAME": "=ens1f0"}
    assert nccl_settings(files) == expected
    found = check_switches({}, files)
    assert found.status == WARN and "NCCL_IB_DISABLE" in found.value and str(machine) in found.remedy
    assert check_switches({"NCCL_IB_DISABLE": "0"}, files).status == OK

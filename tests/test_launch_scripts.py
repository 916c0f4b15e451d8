"""The launch scripts, run by bash in a copy of them with a stand-in train.py.

Most tests also put a stand-in for torch first on PYTHONPATH: its launchers only record their arguments, and
it has as many GPUs as FAKE_GPUS says. What is under test is the scripts; a real launcher costs three seconds.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from launch_project import DOCUMENTED_VARIABLES, SCRIPTS, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


# ---- with a real launcher ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_rank_runs_train_py_with_the_arguments_as_given(project: Project, script: str) -> None:
    given = ["--dataset_path", "my images/*", "it's", 'say "hi" $HOME', "", "--flag=a b", "--epochs=1\\2"]
    ended = project.run(script, *given)
    assert ended.returncode == 0, ended.stderr
    for rank in ("0", "1"):  # two processes on a machine without a visible GPU
        record = project.recorded(rank)
        assert record["argv"] == [str(project.root / "train.py"), "--distributed", *given]
        assert (record["RANK"], record["LOCAL_RANK"], record["WORLD_SIZE"]) == (rank, rank, "2")
        assert record["cwd"] == str(project.elsewhere)  # relative paths mean what they mean to the caller
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        assert record["OMP_NUM_THREADS"] == str(max(1, cores // 2))


def test_the_script_becomes_the_launcher_and_a_signal_reaches_every_rank(project: Project) -> None:
    script = str(project.root / "train_torchrun.sh")
    environ = {**project.environ, "NPROC_PER_NODE": "2"}
    launcher = subprocess.Popen(["bash", script, "--wait"], env=environ, stderr=subprocess.DEVNULL)
    process = psutil.Process(launcher.pid)
    family = [process]
    try:
        deadline = time.monotonic() + 120
        while len(list(project.records.glob("*.waiting"))) < 2:
            assert time.monotonic() < deadline and launcher.poll() is None, "the ranks did not start"
            time.sleep(0.05)
        family += process.children(recursive=True)
        assert "torch.distributed.run" in process.cmdline()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=120) == 143  # that of the ranks
        assert len(list(project.records.glob("*.terminated"))) == 2
        assert not psutil.wait_procs(family[1:], timeout=30)[1]
    finally:
        for member in family:
            if member.is_running():
                member.kill()
        launcher.wait()


# ---- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_arguments_the_demo_runs(project: Project, script: str) -> None:
    record = project.add_stub_torch().launched(script)
    assert record["argv"][-4:] == [str(project.root / "train.py"), "--distributed", "--config", "demo"]
    assert ("--use_env" in record["argv"]) == (script == "train_ddp.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_printed_command_can_be_pasted(project: Project, script: str) -> None:
    record = project.add_stub_torch().launched(script, "two words", "it's", "", CUDA_VISIBLE_DEVICES="")
    words = shlex.split(record["command"])
    assert words[0] == "CUDA_VISIBLE_DEVICES=" and words[1].startswith("OMP_NUM_THREADS=")
    assert words[3:5] == [str(project.root / "retrofit" / "distributed" / "launcher.py"), SCRIPTS[script]]
    assert words[5:] == record["argv"][1:]
    (project.records / "launcher.json").unlink()
    subprocess.run(["bash", "-c", record["command"]], env=project.environ, cwd=project.elsewhere, check=True)
    assert project.recorded("launcher")["argv"] == record["argv"]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help(project: Project, script: str, flag: str) -> None:
    ended = project.run(script, flag, PATH="/usr/bin:/bin")  # needs no Python with torch
    assert ended.returncode == 0
    assert f"bash {script}" in ended.stdout and "python train.py --help" in ended.stdout
    for variable in DOCUMENTED_VARIABLES:
        assert variable in ended.stdout
    assert max(map(len, ended.stdout.splitlines())) <= 120


# ---- how many processes, where they meet -------------------------------------------------------------------


def test_one_process_per_visible_gpu(project: Project) -> None:
    record = project.add_stub_torch().launched("train_torchrun.sh", FAKE_GPUS="3")
    assert record["options"]["nproc_per_node"] == "3"


def test_one_node_uses_a_free_port_of_this_machine(project: Project) -> None:
    project.add_stub_torch()
    ports = set()
    for _ in range(2):
        options = project.launched("train_torchrun.sh")["options"]
        assert (options["nnodes"], options["node_rank"], options["master_addr"]) == ("1", "0", "127.0.0.1")
        ports.add(int(options["master_port"]))
    assert len(ports) == 2 and all(20000 <= port < 30000 for port in ports)


def test_variables_override(project: Project) -> None:
    record = project.add_stub_torch().launched(
        "train_torchrun.sh",
        NPROC_PER_NODE="5",
        OMP_NUM_THREADS="7",
        CUDA_VISIBLE_DEVICES="0,2",
        FAKE_GPUS="2",
    )
    assert record["options"]["nproc_per_node"] == "5"
    assert record["OMP_NUM_THREADS"] == "7"
    assert record["CUDA_VISIBLE_DEVICES"] == "0,2"


def test_more_processes_than_cores_get_one_thread_each(project: Project) -> None:
    record = project.add_stub_torch().launched("train_torchrun.sh", NPROC_PER_NODE="4096")
    assert record["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("script", SCRIPTS)
def test_several_nodes(project: Project, script: str) -> None:
    with listening() as port:
        several = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        options = project.add_stub_torch().launched(script, **several)["options"]
    assert (options["nnodes"], options["node_rank"]) == ("2", "1")
    assert (options["master_addr"], options["master_port"]) == ("127.0.0.1", port)


@pytest.mark.parametrize("script", SCRIPTS)
def test_flags_of_torchrun_reach_the_launcher_in_any_position(project: Project, script: str) -> None:
    project.add_stub_torch()
    with listening() as port:
        flags = ["--nnodes", "2", f"--master-port={port}", "--epochs=3", "--node_rank=1", "--master_addr", "127.0.0.1"]
        variables = {"NNODES": "3", "NODE_RANK": "2", "MASTER_PORT": "1", "MAX_RESTARTS": "9"}
        flags += ["--nproc_per_node", "5", "--max_restarts=0", "--output", "two words"]
        record = project.launched(script, *flags, **variables)
    expected = {"nproc_per_node": "5", "nnodes": "2", "node_rank": "1", "master_addr": "127.0.0.1"}
    assert record["options"] == {**expected, "master_port": port, "max_restarts": "0"}
    assert record["argv"][-4:] == ["--distributed", "--epochs=3", "--output", "two words"]


def test_with_flags_of_torchrun_alone_the_demo_runs(project: Project) -> None:
    record = project.add_stub_torch().launched("train_torchrun.sh", "--master_port", "12345")
    assert record["options"]["master_port"] == "12345"
    assert record["argv"][-3:] == ["--distributed", "--config", "demo"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--master_port"], "--master_port needs a value, such as --master_port 2; give one, or leave out"),
        (["--nnodes="], "--nnodes needs a value"),
        (["--master_port", "--epochs", "3"], "MASTER_PORT must be a whole number >= 1, got '--epochs'"),
        (["--nproc_per_node=gpu"], "NPROC_PER_NODE must be a whole number >= 1, got 'gpu'"),
        (["--nnodes=2"], "NNODES=2 but MASTER_ADDR is not set"),
    ],
)
def test_an_unusable_flag_of_torchrun_is_an_error(project: Project, arguments: list[str], message: str) -> None:
    ended = project.run("train_torchrun.sh", *arguments, PATH="/usr/bin:/bin")
    assert ended.returncode == 2 and f"train_torchrun.sh: error: {message}" in ended.stderr


@pytest.mark.parametrize(("variables", "restarts"), [({}, "0"), ({"MAX_RESTARTS": "3"}, "3")])
def test_restarts(project: Project, variables: dict[str, str], restarts: str) -> None:
    options = project.add_stub_torch().launched("train_torchrun.sh", **variables)["options"]
    assert options["max_restarts"] == restarts


@contextmanager
def listening() -> Iterator[str]:
    """A port of this machine on which something listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield str(listener.getsockname()[1])


def test_a_port_in_use_is_an_error_at_the_rendezvous(project: Project) -> None:
    project.add_stub_torch()
    with listening() as port:
        ended = project.run("train_torchrun.sh", MASTER_PORT=port)
        assert ended.returncode == 2
        assert f"MASTER_PORT={port} is already in use on this machine" in ended.stderr
        # Another machine listens on it: here it may well be taken.
        other = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "127.0.0.1"}
        assert project.launched("train_torchrun.sh", MASTER_PORT=port, **other)["options"]["master_port"] == port
    assert project.launched("train_torchrun.sh", MASTER_PORT=port)["options"]["master_port"] == port


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"NPROC_PER_NODE": "two"}, "NPROC_PER_NODE must be a whole number >= 1, got 'two'"),
        ({"NPROC_PER_NODE": "0"}, "NPROC_PER_NODE must be a whole number >= 1, got '0'"),
        ({"NNODES": "-1"}, "NNODES must be a whole number >= 1, got '-1'"),
        ({"NODE_RANK": "1.5"}, "NODE_RANK must be a whole number >= 0, got '1.5'"),
        ({"NODE_RANK": "1"}, "NODE_RANK=1 but NNODES=1"),
        ({"MASTER_PORT": "08"}, "MASTER_PORT must be a whole number >= 1, got '08'"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536 is not a port"),
        ({"MAX_RESTARTS": "-1"}, "MAX_RESTARTS must be a whole number >= 0, got '-1'"),
        ({"MASTER_TIMEOUT": "1m"}, "MASTER_TIMEOUT must be a whole number >= 1, got '1m'"),
        ({"NNODES": "2"}, "NNODES=2 but MASTER_ADDR is not set"),
        ({"NNODES": "2", "MASTER_ADDR": "node0"}, "NNODES=2 but NODE_RANK is not set"),
        ({"NNODES": "2", "MASTER_ADDR": "node0", "NODE_RANK": "2"}, "NODE_RANK=2 but NNODES=2"),
    ],
)
def test_an_unusable_variable_is_an_error_before_anything_is_installed(
    project: Project, variables: dict[str, str], message: str
) -> None:
    script = "train_ddp.sh" if "NNODES" in variables else "train_torchrun.sh"
    ended = project.run(script, **variables, PATH="/usr/bin:/bin")
    assert ended.returncode == 2
    assert f"{script}: error: {message}; " in ended.stderr
    assert not (project.root / ".venv").exists()

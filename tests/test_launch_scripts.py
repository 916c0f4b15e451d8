"""The launch scripts, run by bash in a copy of them with a stand-in train.py that records how it was started.

Most tests also put a stand-in for torch first on PYTHONPATH: its launchers only record their arguments, and
it has as many GPUs as FAKE_GPUS says. What is under test is the scripts; a real launcher costs three seconds.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from retrofit.launch import dependencies

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = {"train_torchrun.sh": "torch.distributed.run", "train_ddp.sh": "torch.distributed.launch"}
DOCUMENTED_VARIABLES = (
    *("NPROC_PER_NODE", "NNODES", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTHON"),
)
OTHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PYTHONPATH", "VIRTUAL_ENV")
RECORD = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
record = {"argv": sys.argv, "cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}}
with open(os.path.join(os.environ["RECORDS"], f"{record['RANK'] or 'launcher'}.json"), "w") as file:
    json.dump(record, file)
"""
STAND_IN_TRAIN = (
    RECORD
    + """
import signal, time
if "--wait" in sys.argv:
    def note_signal(*_):
        open(os.path.join(os.environ["RECORDS"], f"{record['RANK']}.terminated"), "w").close()
        sys.exit(143)
    signal.signal(signal.SIGTERM, note_signal)
    open(os.path.join(os.environ["RECORDS"], f"{record['RANK']}.waiting"), "w").close()
    time.sleep(60)
"""
)


class Project:
    """A copy of the launch scripts in a folder of its own, and how to run them."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a project"  # a path with a space
        self.records = folder / "records"
        self.elsewhere = folder / "elsewhere"
        unwanted = {*DOCUMENTED_VARIABLES, *OTHER_VARIABLES}
        self.environ = {key: value for key, value in os.environ.items() if key not in unwanted}
        self.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environ.update(RECORDS=str(self.records), CUDA_VISIBLE_DEVICES="")
        for made in (self.root / "retrofit", self.records, self.elsewhere):
            made.mkdir(parents=True)
        for name in (*SCRIPTS, "pyproject.toml"):
            shutil.copy(ROOT / name, self.root / name)
        launch = self.root / "retrofit" / "launch"
        shutil.copytree(ROOT / "retrofit" / "launch", launch, ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "train.py").write_text(STAND_IN_TRAIN)

    def stand_in_torch(self) -> Project:
        """Put modules first on PYTHONPATH that are quick to import and launch nothing."""
        folder = self.root.parent / "stand_in"
        (folder / "torch" / "distributed").mkdir(parents=True)
        for name in ("torchvision", "tensorboardX", "gpustat", "tqdm", "yaml", "numpy", "PIL", "rich"):
            (folder / f"{name}.py").touch()
        gpus = "class cuda:\n    device_count = staticmethod(lambda: int(os.environ.get('FAKE_GPUS', '0')))\n"
        (folder / "torch" / "__init__.py").write_text(f"import os\n{gpus}")
        (folder / "torch" / "distributed" / "__init__.py").touch()
        for launcher in ("run", "launch"):
            (folder / "torch" / "distributed" / f"{launcher}.py").write_text(RECORD)
        self.environ["PYTHONPATH"] = str(folder)
        return self

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the project from another folder."""
        return subprocess.run(
            ["bash", str(self.root / script), *arguments],
            env={**self.environ, **variables},
            cwd=self.elsewhere,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def launched(self, script: str, *arguments: str, **variables: str) -> dict[str, Any]:
        """Run a script with the stand-in launcher; return what that recorded, and the line printed."""
        ended = self.run(script, *arguments, **variables)
        assert ended.returncode == 0, ended.stderr
        record = self.recorded("launcher")
        return {**record, "options": _options(record["argv"][1:]), "command": ended.stderr.splitlines()[-1]}

    def recorded(self, who: str) -> dict[str, Any]:
        """Return what a process recorded: "launcher", or the rank of a train.py."""
        return json.loads((self.records / f"{who}.json").read_text())


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _options(arguments: list[str]) -> dict[str, str]:
    return dict(
        argument[2:].split("=", 1)
        for argument in arguments
        if argument.startswith("--n") or "master" in argument
    )


# ---- with a real launcher ----------------------------------------------------------------------------------


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
        deadline = time.monotonic() + 30
        while len(list(project.records.glob("*.waiting"))) < 2:
            assert time.monotonic() < deadline and launcher.poll() is None, "the ranks did not start"
            time.sleep(0.05)
        family += process.children(recursive=True)
        assert "torch.distributed.run" in process.cmdline()
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(timeout=20) != 0
        assert len(list(project.records.glob("*.terminated"))) == 2
        assert not psutil.wait_procs(family[1:], timeout=5)[1]
    finally:
        for member in family:
            if member.is_running():
                member.kill()
        launcher.wait()


# ---- the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS)
def test_without_arguments_the_demo_runs(project: Project, script: str) -> None:
    record = project.stand_in_torch().launched(script)
    assert record["argv"][-4:] == [str(project.root / "train.py"), "--distributed", "--config", "demo"]
    assert ("--use_env" in record["argv"]) == (script == "train_ddp.sh")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_printed_command_can_be_pasted(project: Project, script: str) -> None:
    record = project.stand_in_torch().launched(script, "two words", "it's", "", CUDA_VISIBLE_DEVICES="")
    words = shlex.split(record["command"])
    assert words[0] == "CUDA_VISIBLE_DEVICES=" and words[1].startswith("OMP_NUM_THREADS=")
    assert words[3:5] == ["-m", SCRIPTS[script]]
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
    record = project.stand_in_torch().launched("train_torchrun.sh", FAKE_GPUS="3")
    assert record["options"]["nproc_per_node"] == "3"


def test_one_node_meets_on_this_machine_at_a_free_port(project: Project) -> None:
    project.stand_in_torch()
    ports = set()
    for _ in range(2):
        options = project.launched("train_torchrun.sh")["options"]
        assert (options["nnodes"], options["node_rank"], options["master_addr"]) == ("1", "0", "127.0.0.1")
        ports.add(int(options["master_port"]))
    assert len(ports) == 2 and all(20000 <= port < 30000 for port in ports)


def test_variables_override(project: Project) -> None:
    record = project.stand_in_torch().launched(
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
    record = project.stand_in_torch().launched("train_torchrun.sh", NPROC_PER_NODE="4096")
    assert record["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize("script", SCRIPTS)
def test_several_nodes(project: Project, script: str) -> None:
    several = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
    options = project.stand_in_torch().launched(script, **several)["options"]
    assert (options["nnodes"], options["node_rank"]) == ("2", "1")
    assert (options["master_addr"], options["master_port"]) == ("10.0.0.1", "29500")


def test_a_taken_port_is_an_error_where_the_processes_meet(project: Project) -> None:
    project.stand_in_torch()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = project.run("train_torchrun.sh", MASTER_PORT=port)
        assert ended.returncode == 2
        assert f"MASTER_PORT={port} is already in use on this machine" in ended.stderr
        # Another machine listens on it: here it may well be taken.
        other = {"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"}
        assert (
            project.launched("train_torchrun.sh", MASTER_PORT=port, **other)["options"]["master_port"] == port
        )
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


# ---- which Python ------------------------------------------------------------------------------------------


def _bare_python(folder: Path) -> Path:
    """Return the bin folder of an environment that has nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin"


def test_a_complete_venv_is_used_when_the_active_python_lacks_the_dependencies(
    project: Project, tmp_path: Path
) -> None:
    project.stand_in_torch()
    bare = _bare_python(tmp_path / "bare")
    (project.root / ".venv").symlink_to(sys.prefix)
    record = project.launched("train_torchrun.sh", PATH=f"{bare}{os.pathsep}{os.environ['PATH']}")
    assert shlex.split(record["command"])[2] == str(project.root / ".venv" / "bin" / "python")


def test_the_python_that_is_asked_for_is_used_or_refused(project: Project, tmp_path: Path) -> None:
    project.stand_in_torch()
    bare = _bare_python(tmp_path / "bare")
    record = project.launched("train_torchrun.sh", PYTHON=sys.executable, PATH=f"{bare}:/usr/bin:/bin")
    assert shlex.split(record["command"])[2] == sys.executable
    ended = project.run("train_torchrun.sh", PYTHON=str(bare / "python"))
    assert ended.returncode == 2
    assert f"PYTHON={bare / 'python'} lacks dependencies: torch is not installed" in ended.stderr
    ended = project.run("train_torchrun.sh", PYTHON="no-such-python")
    assert ended.returncode == 2 and "PYTHON=no-such-python is not a Python >= 3.9" in ended.stderr


@pytest.fixture
def installable(project: Project, tmp_path: Path) -> Project:
    """A project with one small dependency, installed from a folder, and an active Python without it."""
    lists = '[project]\ndependencies = [\n    "standin>=1.2",\n]\n'
    lists += "[project.optional-dependencies]\ntensorboard = [\n]\n"
    (project.root / "pyproject.toml").write_text(lists)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    info = "standin-1.2.dist-info"
    with zipfile.ZipFile(wheels / "standin-1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("standin.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: standin\nVersion: 1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    bare = _bare_python(tmp_path / "bare")
    project.environ.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(wheels), PATH=f"{bare}:{os.environ['PATH']}")
    (project.root / "show.sh").write_text(
        'set -euo pipefail\nroot="$(dirname "$0")"\nsource "${root}/retrofit/launch/python_env.sh"\n'
        'find_python "${root}"\necho "${PYTHON}"\n'
    )
    return project


def test_two_first_runs_at_once_finish_one_interrupted_installation(installable: Project) -> None:
    venv = installable.root / ".venv"
    venv.mkdir()
    (venv / dependencies.UNFINISHED).touch()
    (venv / "half a package").touch()
    command = ["bash", str(installable.root / "show.sh")]
    pipes: dict[str, Any] = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = [subprocess.Popen(command, env=installable.environ, **pipes) for _ in range(2)]
    outputs = [run.communicate(timeout=60) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert [out.strip() for out, _ in outputs] == [str(venv / "bin" / "python")] * 2
    messages = outputs[0][1] + outputs[1][1]
    assert messages.count("Successfully installed standin-1.2") == 1
    assert "lacks dependencies: standin is not installed" in messages
    assert "starting over with the unfinished" in messages
    assert not (venv / "half a package").exists() and not (venv / dependencies.UNFINISHED).exists()
    # A third run finds everything in place, and says which Python it takes.
    third = installable.run("show.sh")
    assert third.returncode == 0 and third.stderr.count("\n") == 1 and "using" in third.stderr


def test_an_environment_that_is_not_ours_is_left_alone(installable: Project) -> None:
    (installable.root / ".venv").mkdir()
    (installable.root / ".venv" / "precious").touch()
    ended = installable.run("show.sh")
    assert (
        ended.returncode == 2 and ".venv has no working bin/python >= 3.9; remove that folder" in ended.stderr
    )
    assert (installable.root / ".venv" / "precious").exists()


def test_a_failed_installation_says_so_and_is_known_to_be_unfinished(
    installable: Project, tmp_path: Path
) -> None:
    (tmp_path / "wheels" / "standin-1.2-py3-none-any.whl").unlink()
    ended = installable.run("show.sh")
    assert ended.returncode == 2 and "error: installing the dependencies failed" in ended.stderr
    assert "No matching distribution found for standin>=1.2" in ended.stderr
    assert (installable.root / ".venv" / dependencies.UNFINISHED).exists()


def test_a_python_that_cannot_make_environments_is_an_error_with_the_remedy(
    installable: Project, tmp_path: Path
) -> None:
    (tmp_path / "ensurepip.py").write_text(
        "raise ImportError('No module named ensurepip')\n"
    )  # as Debian's python3
    ended = installable.run("show.sh", PYTHONPATH=str(tmp_path))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert ended.returncode == 2
    assert f"apt install python{version}-venv" in ended.stderr
    assert not (installable.root / ".venv").exists()


# ---- the list of dependencies ------------------------------------------------------------------------------


def test_the_lists_of_pyproject_are_read_as_a_toml_parser_reads_them() -> None:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml  # comes with pytest
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert dependencies.read_requirements(ROOT) == project["dependencies"]
    for extra, requirements in project["optional-dependencies"].items():
        assert dependencies.read_requirements(ROOT, extra) == requirements
    for requirement in project["dependencies"]:
        assert re.fullmatch(r"[\w.-]+(>=[\d.]+)?(,<[\d.]+)?", requirement), (
            f"only >= and < are checked: {requirement}"
        )
    with pytest.raises(ValueError, match="no list 'dev' under"):
        dependencies.read_requirements(ROOT, "dev")


def test_what_is_missing_is_named_with_the_version_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"old": "1.9.1", "vendor": "2.1.0a0+32f93b1", "new": "3.0", "broken": "2.1"}

    def version(name: str) -> str:
        if name not in versions:
            raise dependencies.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(dependencies.metadata, "version", version)
    requirements = ["absent>=1", "old>=1.10", "vendor>=2.1", "new>=1,<3"]
    assert dependencies.missing_from_this_python(requirements, import_them=True) == [
        "absent is not installed",
        "old is 1.9.1, not >=1.10",
        "new is 3.0, not <3",
    ]
    (problem,) = dependencies.missing_from_this_python(["broken>=2"], import_them=True)
    assert problem.startswith("broken cannot be imported (ModuleNotFoundError")

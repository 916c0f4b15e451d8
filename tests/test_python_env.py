"""Which Python the scripts run with: the active one, .venv, or a .venv that is made and installed into."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from launch_project import ROOT, Project

from scripts.launch import dependencies


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def _bare_python(folder: Path) -> Path:
    """Return the bin folder of an environment that has nothing installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin"


def test_a_complete_venv_is_used_if_the_active_python_lacks_dependencies(project: Project, tmp_path: Path) -> None:
    project.add_stub_torch()
    bare = _bare_python(tmp_path / "bare")
    (project.root / ".venv").symlink_to(sys.prefix)
    record = project.launched("train_torchrun.sh", PATH=f"{bare}{os.pathsep}{os.environ['PATH']}")
    assert shlex.split(record["command"])[2] == str(project.root / ".venv" / "bin" / "python")
    assert not (project.root / ".venv.lock").exists()  # nobody thought of installing


def test_the_python_that_is_asked_for_is_used_or_refused(project: Project, tmp_path: Path) -> None:
    project.add_stub_torch()
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
    lists = '[project.optional-dependencies]\nreference = [\n    "standin>=1.2",\n]\ntensorboard = [\n]\n'
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
    project.environ.update(
        PIP_FIND_LINKS=str(wheels), PATH=f"{bare}:{os.environ['PATH']}", XDG_CACHE_HOME=str(tmp_path)
    )
    (project.root / "show.sh").write_text(
        'set -euo pipefail\nroot="$(dirname "$0")"\nsource "${root}/scripts/launch/python_env.sh"\n'
        'find_python "${root}"\necho "${PYTHON}"\n'
    )
    return project


def test_two_first_runs_at_once_finish_one_interrupted_installation(installable: Project) -> None:
    venv, environ = installable.root / ".venv", installable.environ
    venv.mkdir()
    (venv / dependencies.UNFINISHED).touch()
    (venv / "half a package").touch()
    command = ["bash", str(installable.root / "show.sh")]
    errors = [installable.records / name for name in ("first", "second")]
    runs = []
    with (installable.root / ".venv.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as if a third run were installing
        for path in errors:
            with path.open("w") as stderr:
                pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": stderr, "text": True}
                runs.append(subprocess.Popen(command, env=environ, **pipes))
        deadline = time.monotonic() + 120
        while not all("waiting for it" in path.read_text() for path in errors):
            assert time.monotonic() < deadline, [path.read_text() for path in errors]
            time.sleep(0.05)
        assert (venv / "half a package").exists()
    outputs = [run.communicate(timeout=300)[0].strip() for run in runs]
    messages = "".join(path.read_text() for path in errors)
    assert outputs == [str(venv / "bin" / "python")] * 2, messages
    assert messages.count("[python_env] installing 1 package(s) into") == 1
    assert "Successfully installed standin-1.2" in (venv / dependencies.LOG).read_text()
    said = [line for line in messages.splitlines() if "another process" not in line]
    assert all(line.startswith("[python_env] ") for line in said) and len(said) <= 8, "a line per stage, none of pip's"
    assert f"details: {venv / dependencies.LOG}" in messages
    assert "lacks dependencies: standin is not installed" in messages
    assert "starting over with the unfinished" in messages
    assert not (venv / "half a package").exists() and not (venv / dependencies.UNFINISHED).exists()
    # A third run finds everything in place, and says which Python it takes.
    third = installable.run("show.sh")
    assert third.returncode == 0 and third.stderr.count("\n") == 1 and "using" in third.stderr


@pytest.mark.parametrize("made", [False, True])
def test_train_py_says_in_one_line_what_to_run(tmp_path: Path, made: bool) -> None:
    bare = _bare_python(tmp_path / "bare")
    clone = tmp_path / "clone"
    packages = ("retrofit/packages/__init__.py", "retrofit/packages/installation.py")
    for name in ("retrofit/__init__.py", *packages, "pyproject.toml", "train.py"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, clone / name)
    shutil.copytree(ROOT / "scripts", clone / "scripts")
    # Packages of the same names, installed and in the current folder, are not the clone's.
    (site_packages,) = tmp_path.glob("bare/lib/python*/site-packages")
    for elsewhere in (site_packages, tmp_path):
        for name in ("scripts", "retrofit"):
            (elsewhere / name).mkdir()
            (elsewhere / name / "__init__.py").write_text("raise ImportError('another package')\n")
    if made:
        (clone / ".venv").symlink_to(tmp_path / "bare")
    environ = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    command = [str(bare / "python"), str(clone / "train.py"), "--epochs", "1"]
    ended = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and ended.stdout == ""
    assert line.startswith("train.py: error: torch, torchvision, tensorboardX, gpustat, tqdm, PyYAML, numpy, Pillow")
    assert f"not installed for {bare / 'python'}; run " in line
    if made:
        assert line.endswith(f"run `source {clone}/.venv/bin/activate` first")
    else:
        assert f"run `bash {clone}/train_torchrun.sh`, which installs what is missing, or `" in line
        assert line.endswith(f"pip install '{clone}[reference]'`")


def test_an_environment_of_another_project_is_unchanged(installable: Project) -> None:
    (installable.root / ".venv").mkdir()
    (installable.root / ".venv" / "precious").touch()
    ended = installable.run("show.sh")
    assert ended.returncode == 2 and ".venv has no working bin/python >= 3.9; remove that folder" in ended.stderr
    assert (installable.root / ".venv" / "precious").exists()


def test_a_failed_installation_says_so_and_is_known_to_be_unfinished(installable: Project, tmp_path: Path) -> None:
    (tmp_path / "wheels" / "standin-1.2-py3-none-any.whl").unlink()
    ended = installable.run("show.sh")
    assert ended.returncode == 2 and "error: installing the dependencies failed" in ended.stderr
    assert "    ERROR: No matching distribution found for standin>=1.2" in ended.stderr.splitlines()
    log = installable.root / ".venv" / dependencies.LOG
    assert f"all of it in {log}; command: " in ended.stderr and "pip install" in log.read_text()
    assert ended.stderr.count("\n") < 20
    assert (installable.root / ".venv" / dependencies.UNFINISHED).exists()


def test_a_python_that_cannot_make_environments_is_an_error_with_the_remedy(
    installable: Project, tmp_path: Path
) -> None:
    (tmp_path / "ensurepip.py").write_text("raise ImportError('No module named ensurepip')\n")  # as Debian's python3
    ended = installable.run("show.sh", PYTHONPATH=str(tmp_path))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert ended.returncode == 2
    assert f"apt install python{version}-venv" in ended.stderr
    assert not (installable.root / ".venv").exists()


def test_the_lists_of_pyproject_are_read_as_a_toml_parser_reads_them() -> None:
    if sys.version_info >= (3, 11):
        import tomllib as toml
    else:
        import tomli as toml  # comes with pytest
    project = toml.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, requirements in project["optional-dependencies"].items():
        here = [text.partition(";")[0] for text in requirements if sys.version_info >= (3, 10) or ";" not in text]
        assert dependencies.read_requirements(ROOT, extra) == here, "the one marker is: Python 3.10 or newer"
    for requirement in project["optional-dependencies"]["reference"]:
        assert re.fullmatch(r"[\w.-]+(>=[\d.]+)?(,<[\d.]+)?", requirement), f"only >= and < are checked: {requirement}"
    with pytest.raises(ValueError, match="no list 'dev' under"):
        dependencies.read_requirements(ROOT, "dev")


def test_a_marker_decides_by_the_version_of_this_python(tmp_path: Path) -> None:
    lists = """[project.optional-dependencies]
test = [
    "old<2; python_version < '3.9'",
    "new>=1; python_version >= '3.9'",
    "newer>=1; python_version >= '3.99'",
]
"""
    (tmp_path / "pyproject.toml").write_text(lists)
    assert dependencies.read_requirements(tmp_path, "test") == ["new>=1"]
    (tmp_path / "pyproject.toml").write_text(lists.replace("python_version >=", "os_name =="))
    with pytest.raises(ValueError, match=r"marker \"os_name == '3.9'\" is not python_version"):
        dependencies.read_requirements(tmp_path, "test")


def test_a_missing_package_is_named_with_the_installed_version(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_import_checks_are_repeated_only_after_an_installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = tmp_path / "site-packages"
    (packages / "standin-1.2.dist-info").mkdir(parents=True)
    (packages / "standin-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: standin\nVersion: 1.2\n")
    (packages / "standin.py").write_text("print('imported')\n")
    environ = {**os.environ, "PYTHONPATH": str(packages), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    environ["PYTHONDONTWRITEBYTECODE"] = "1"
    (tmp_path / "pyproject.toml").write_text('[project.optional-dependencies]\nreference = [\n    "standin>=1.2",\n]\n')

    def check(**variables: str) -> tuple[int, str, str]:
        command = [sys.executable, str(ROOT / "scripts" / "launch" / "dependencies.py"), "check", str(tmp_path)]
        ended = subprocess.run(command, env={**environ, **variables}, capture_output=True, text=True)
        return ended.returncode, ended.stdout.strip(), ended.stderr.strip()

    assert check() == (0, "", "imported")
    assert check() == (0, "", "")
    (packages / "another.py").touch()
    assert check() == (0, "", "imported")
    (packages / "standin.py").unlink()
    (packages / "standin.py").write_text("raise OSError('half a library')\n")
    assert check() == (1, "standin cannot be imported (OSError: half a library)", "")
    assert check() == (1, "standin cannot be imported (OSError: half a library)", "")  # a failure is not remembered
    (packages / "standin.py").write_text("print('imported')\n")
    assert check(XDG_CACHE_HOME="/dev/null") == (0, "", "imported")  # nowhere to remember it
    assert check(XDG_CACHE_HOME="/dev/null") == (0, "", "imported")

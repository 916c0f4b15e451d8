"""The kit as a package: what its wheel holds, and what of it works where nothing else is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from test_layers import STANDARD_LIBRARY, imports

import retrofit
from retrofit.cli import main
from retrofit.doctor import command as doctor
from retrofit.packages import installation
from retrofit.verify import command as verify
from scripts.launch import dependencies

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "tests" / "convert" / "projects" / "main_function"
EXTRAS = ("verify", "doctor", "reference", "tensorboard", "deepspeed", "test")


def names_in(extra: str) -> set[str]:
    return {re.split("[<>=]", requirement)[0] for requirement in dependencies.read_requirements(ROOT, extra)}


# ---- the wheel ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of this project without a network."""
    source, made = tmp_path_factory.mktemp("source") / "clone", tmp_path_factory.mktemp("wheel")
    leftovers = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "log", "*.egg-info")
    shutil.copytree(ROOT, source, ignore=leftovers)
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "-w", str(made)]
    ended = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (path,) = made.iterdir()
    return path


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the wheel, as pip installs it, and nothing else."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=300)
    # Without an index: a requirement of the kit would be an error here.
    command = [folder / "bin" / "python", "-m", "pip", "install", "--no-index", wheel]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return folder / "bin"


def run(clean: Path, *command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(clean / command[0]), *command[1:]], cwd=cwd, env=environ, capture_output=True, text=True, timeout=300
    )


def test_the_wheel_holds_the_kit_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"torch_retrofit-{retrofit.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = [name for name in names if name.endswith("/METADATA")]
        fields = archive.read(metadata).decode().partition("\n\n")[0].splitlines()
    info = f"torch_retrofit-{retrofit.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"retrofit", info}
    packaged = {name for name in names if name.startswith("retrofit/")}
    in_clone = {str(path.relative_to(ROOT)) for path in (ROOT / "retrofit").rglob("*") if path.is_file()}
    assert packaged == {name for name in in_clone if "__pycache__" not in name}
    assert "Name: torch-retrofit" in fields
    assert {line.partition(": ")[2] for line in fields if line.startswith("Provides-Extra")} == set(EXTRAS)
    required = [line for line in fields if line.startswith("Requires-Dist")]
    assert [line for line in required if "extra ==" not in line] == []


def test_check_convert_and_rules_work_from_another_folder_without_any_dependency(clean: Path, tmp_path: Path) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    project = tmp_path / "project"
    assert run(clean, "retrofit", "--version", cwd=project).stdout == f"retrofit {retrofit.__version__}\n"
    listed = run(clean, "retrofit", "check", "train.py", cwd=project)
    assert listed.returncode == 1 and "train.py:77:5: RF103 " in listed.stdout, listed.stderr
    by_module = run(clean, "python", "-m", "retrofit", "check", "train.py", cwd=project)
    assert (by_module.returncode, by_module.stdout) == (1, listed.stdout)
    assert "RF103 loader-not-sharded" in run(clean, "retrofit", "rules", "RF103", cwd=project).stdout
    before = (project / "train.py").read_text()
    converted = run(clean, "retrofit", "convert", "train.py", "--write", cwd=project)
    assert converted.returncode == 0, converted.stderr
    assert (project / "multigpu.py").read_bytes() == (
        ROOT / "retrofit" / "convert" / "added" / "multigpu.py"
    ).read_bytes()
    by_module = run(clean, "python", "-m", "retrofit", "check", "train.py", cwd=project)
    assert (by_module.returncode, by_module.stderr) == (0, ""), by_module.stdout
    assert run(clean, "python", "-m", "retrofit", "convert", "train.py", "--undo", cwd=project).returncode == 0
    assert (project / "train.py").read_text() == before and not (project / "multigpu.py").exists()


@pytest.mark.parametrize(
    ("command", "packages"),
    [
        (("verify", "train.py"), "torch, matplotlib, psutil, rich, tqdm are not installed"),
        (("doctor",), "psutil, rich are not installed"),
    ],
)
def test_a_command_that_needs_more_says_in_one_line_what_to_install(
    clean: Path, wheel: Path, tmp_path: Path, command: tuple[str, ...], packages: str
) -> None:
    ended = run(clean, "retrofit", *command, cwd=tmp_path)
    (line,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and ended.stdout == ""
    assert line.startswith(f"retrofit {command[0]}: ") and f"error: {packages}" in line
    # From where it came: the package index knows another project by the name `retrofit`, and this one not at all.
    assert line.endswith(f"run `{clean / 'python'} -m pip install '{wheel}[{command[0]}]'`")


# ---- the lists of pyproject.toml ----------------------------------------------------------------------------


@pytest.mark.parametrize("module", [verify, doctor], ids=["verify", "doctor"])
def test_an_extra_holds_what_its_command_imports(module: object) -> None:
    command = module.__name__.split(".")[1]
    files = [path for path in (ROOT / "retrofit" / command).rglob("*.py")]
    used = {name.partition(".")[0] for path in files for name in imports(path)}
    needed = {name for name in used if name not in STANDARD_LIBRARY and name != "retrofit"}
    examined = {"torch"} if command == "doctor" else set()  # a missing torch is a finding, not an error
    assert set(module.PACKAGES) == needed - examined == names_in(command)


def test_what_is_in_several_extras_has_the_same_bounds_in_each() -> None:
    bounds: dict[str, set[str]] = {}
    for extra in EXTRAS:
        for requirement in dependencies.read_requirements(ROOT, extra):
            bounds.setdefault(re.split("[<>=]", requirement)[0], set()).add(requirement)
    assert {name: found for name, found in bounds.items() if len(found) > 1} == {}
    assert names_in("verify") | names_in("doctor") < names_in("reference")  # one environment for all of the README


def test_the_reference_project_imports_only_what_its_extra_holds() -> None:
    module_names = {**dependencies.MODULE_NAMES}
    files = [ROOT / "train.py", ROOT / "utils.py", *(ROOT / "segmentation").rglob("*.py")]
    used = {name.partition(".")[0] for path in files for name in imports(path)}
    third_party = used - set(STANDARD_LIBRARY) - {"retrofit", "scripts", "segmentation", "utils", "train"}
    assert third_party <= {module_names.get(name, name) for name in names_in("reference")}


# ---- where the kit came from --------------------------------------------------------------------------------


def test_a_clone_is_installed_by_its_path() -> None:
    assert installation.requirement("verify") == f"{ROOT}[verify]"


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (None, "torch-retrofit[verify]"),
        ({}, "torch-retrofit[verify]"),
        ({"url": "file:///no/such/folder", "dir_info": {}}, "torch-retrofit[verify]"),
        ({"url": "file://{folder}", "dir_info": {"editable": True}}, "{folder}[verify]"),
        (
            {"url": "https://git.example/kit.git", "vcs_info": {"vcs": "git", "commit_id": "0a1b"}},
            "torch-retrofit[verify] @ git+https://git.example/kit.git@0a1b",
        ),
        ({"url": "https://files.example/kit.whl", "archive_info": {}}, "torch-retrofit[verify] @ https://files.example/kit.whl"),
    ],
)  # fmt: skip
def test_an_installed_kit_is_installed_from_where_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded: dict[str, object] | None, expected: str
) -> None:
    site = tmp_path / "site packages"
    info = site / f"torch_retrofit-{retrofit.__version__}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-retrofit\nVersion: {retrofit.__version__}\n")
    if recorded is not None:
        (info / "direct_url.json").write_text(json.dumps(recorded).replace("{folder}", str(site).replace(" ", "%20")))
    monkeypatch.setattr(installation, "__file__", str(site / "retrofit" / "packages" / "installation.py"))
    monkeypatch.syspath_prepend(str(site))
    assert installation.requirement("verify") == expected.replace("{folder}", str(site))


# ---- the command line ---------------------------------------------------------------------------------------


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("usage: retrofit [-h] [--version] COMMAND ...")
    for command in ("check", "convert", "rules", "verify", "doctor"):
        assert f"    {command} " in shown.err


def test_a_conversion_without_the_runtime_file_says_what_every_machine_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(PROJECT, tmp_path / "project")
    script = tmp_path / "project" / "train.py"
    assert main(["convert", str(script), "--write", "--no-vendor"]) == 0
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (f"the runtime is not among them; on every machine that trains run `python -m pip install {ROOT}`")
    page = " ".join((script.parent / "MULTI_GPU.md").read_text().split())
    kit = f"torch-retrofit {retrofit.__version__}"
    assert f"every machine that trains needs the kit, {kit}: `pip install CLONE`" in page
    assert not (script.parent / "retrofit").exists()
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    assert "every machine that trains then needs (the distribution torch-retrofit)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_no_message_installs_the_unrelated_package_of_the_import_name() -> None:
    files = [path for folder in ("retrofit", "docs", ".github", "examples") for path in (ROOT / folder).rglob("*")]
    files = [path for path in (*files, *ROOT.iterdir()) if path.suffix in (".py", ".md", ".sh", ".yml", ".toml")]
    wrong = re.compile(r"pip3? install [^`\n]*(?<![\w/.-])retrofit(?![\w/.-])")
    assert [str(path) for path in files if wrong.search(path.read_text(encoding="utf-8"))] == []
    assert wrong.search("pip install 'retrofit[deepspeed]'") and not wrong.search("pip install /path/to/retrofit")


# ---- what the READMEs say -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "heading"), [("README.md", "Install"), ("README.zh-CN.md", "安装")])
def test_the_commands_of_the_readme_install_from_another_folder(
    name: str, heading: str, wheel: Path, clean: Path, tmp_path: Path
) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)^## ", text, re.MULTILINE | re.DOTALL)
    (block,) = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    commands = [line.split("#")[0].strip() for line in block.splitlines() if line.strip()]
    extras = {extra for line in commands for extra in re.findall(r"\[(\w+)\]", line)}
    assert extras == {"verify", "doctor"} and "torch-retrofit" in section
    shutil.copytree(PROJECT, tmp_path / "my_project")
    (plain,) = [line for line in commands if line.endswith("pip install /path/to/the/clone")]
    rest = [line for line in commands if line.startswith(("cd ", "retrofit "))]
    script = "\n".join(["set -e", f"{plain} --no-index --force-reinstall", *rest])
    script = script.replace("/path/to/the/clone", str(wheel)).replace("~", str(tmp_path))
    ended = subprocess.run(
        ["bash", "-c", script.replace("retrofit check train.py", "retrofit check train.py || test $? = 1")],
        env={**os.environ, "PATH": f"{clean}:{os.environ['PATH']}"},
        cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "RF103" in ended.stdout

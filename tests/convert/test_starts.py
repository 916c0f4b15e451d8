"""Where a project's own command starts its script: from which folder, as a file or with `python -m`, and what it finds.

Projects are written as files by path; a `/` at the end is a folder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrofit.analysis.files.missing_modules import missing_modules
from retrofit.cli import main
from retrofit.training.launch.entry import open_project

MODEL = "import torch\n\n\ndef make():\n    return torch.nn.Linear(3, 1)\n"
TRAINING = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(16, 3)), 4, shuffle=True)
model = make()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
torch.save(model.state_dict(), "model.pt")
print("trained", flush=True)
"""
OF_PACKAGE, OF_LIB, RELATIVE = (f"{line}\n{TRAINING}" for line in (
    "from pkg.model import make", "from lib.model import make", "from .model import make",
))  # fmt: skip
EITHER = f"try:\n    from .model import make\nexcept ImportError:\n    from model import make\n{TRAINING}"
HERE = "os.path.dirname(os.path.abspath(__file__))"
PACKAGE = {"pkg/__init__.py": "", "pkg/model.py": MODEL}
LIB = {"lib/__init__.py": "", "lib/model.py": MODEL}


def adds(*statements: str) -> str:
    """Return a training that puts something on its search path."""
    return "\n".join(["import os, sys", "from pathlib import Path", *statements, OF_LIB])


INIT_PATHS = """\
import os.path as osp, sys


def add_path(path):
    if path not in sys.path:
        sys.path.insert(0, path)


this_dir = osp.dirname(__file__)
add_path(osp.join(this_dir, '..'))
"""
# name: files, script, and the start that is found: folder, module, folders of PYTHONPATH.
STARTS = {
    "flat": ({"train.py": OF_LIB, **LIB}, "train.py", (".", None, [])),
    "module next to it": ({"a/train.py": "from model import make\n" + TRAINING, "a/model.py": MODEL, "setup.py": ""},
                      "a/train.py", ("a", None, [])),
    "package in src": ({f"src/{k}": v for k, v in PACKAGE.items()} | {"src/pkg/train.py": OF_PACKAGE, ".git/": ""},
                       "src/pkg/train.py", ("src", "pkg.train", [])),
    "relative": (PACKAGE | {"pkg/train.py": RELATIVE}, "pkg/train.py", (".", "pkg.train", [])),
    "relative without __init__": ({"pkg/model.py": MODEL, "pkg/train.py": RELATIVE}, "pkg/train.py",
                                  (".", "pkg.train", [])),
    "__main__": (PACKAGE | {"pkg/__main__.py": RELATIVE}, "pkg/__main__.py", (".", "pkg", [])),
    "relative or not": (PACKAGE | {"pkg/train.py": EITHER}, "pkg/train.py", ("pkg", None, [])),
    "project of a repository": (LIB | {"projects/x/x.py": OF_LIB, "setup.py": ""}, "projects/x/x.py",
                                (".", "projects.x.x", [])),
    "no name of a module": (LIB | {"projects/my-x/x.py": OF_LIB, ".git/": ""}, "projects/my-x/x.py",
                            (".", None, ["."])),
    "both folders": (LIB | {"tools/train.py": f"import help\n{OF_LIB}", "tools/help.py": "", "setup.cfg": ""},
                     "tools/train.py", (".", None, ["."])),
    "two folders above": (LIB | {"b/other/__init__.py": "", "b/c/train.py": f"import other\n{OF_LIB}", ".git/": ""},
                          "b/c/train.py", (".", None, [".", "b"])),
    "os.path": (LIB | {"tools/train.py": adds(f"sys.path.insert(0, os.path.dirname({HERE}))")}, "tools/train.py",
                (".", None, [])),
    "pathlib": (LIB | {"a/b/train.py": adds("root = Path(__file__).resolve().parents[2]", "sys.path += [str(root)]")},
                "a/b/train.py", (".", None, [])),
    "text": (LIB | {"tools/train.py": adds("sys.path.append(f'{os.path.dirname(__file__)}/..')")}, "tools/train.py",
             (".", None, [])),
    "text with places": (LIB | {"tools/train.py": adds("sys.path.append('%s/..' % os.path.dirname(__file__))")},
             "tools/train.py", (".", None, [])),
    "text by format": (LIB | {"tools/train.py": adds("sys.path.append('{}/..'.format(os.path.dirname(__file__)))")},
             "tools/train.py", (".", None, [])),
    "sibling": ({f"third/{k}": v for k, v in LIB.items()}
                | {"tools/train.py": adds(f"sys.path = [os.path.join({HERE}, os.pardir, 'third'), *sys.path]")},
                "tools/train.py", (".", None, [])),
    "folder of the script": ({f"third/{k}": v for k, v in LIB.items()}
                             | {"tools/train.py": adds("sys.path.insert(1, os.path.join(sys.path[0], '../third'))")},
                             "tools/train.py", (".", None, [])),
    "_init_paths": (LIB | {"tools/train.py": f"import _init_paths\n{OF_LIB}", "tools/_init_paths.py": INIT_PATHS},
                    "tools/train.py", (".", None, [])),
    "where it starts": (LIB | {"tools/train.py": adds("sys.path.append('..')")}, "tools/train.py",
                        (".", "tools.train", [])),
    "standard library": ({"random.py": "", "a/train.py": "import random\n" + TRAINING, ".git/": ""}, "a/train.py",
                         ("a", None, [])),
    "script next to src": ({f"src/{k}": v for k, v in PACKAGE.items()}
                           | {"scripts/train.py": OF_PACKAGE, "pyproject.toml": ""},
                           "scripts/train.py", (".", None, ["src"])),
    "outside the work tree": (LIB | {"a/train.py": adds(f"sys.path.append(os.path.dirname({HERE}))"), "a/.git/": ""},
                              "a/train.py", ("a", None, [])),
}  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.mkdir(parents=True) if name.endswith("/") else path.parent.mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.write_text(text)
    return folder


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", STARTS)
def test_the_start_is_found_by_the_imports(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, script, expected = STARTS[name]
    monkeypatch.setenv("PYTHONPATH", "")
    project, start = open_project(str(write(tmp_path, files) / script))
    assert (os.path.relpath(start.root, tmp_path), start.module, start.folders) == expected
    is_found = any(source.path.name == "model.py" for source in project.sources)
    assert is_found == (name not in ("standard library", "outside the work tree"))
    assert bool(missing_modules(project.modules)) == (name == "outside the work tree")


def test_a_path_that_functions_hand_to_each_other_is_followed_once(tmp_path: Path) -> None:
    calls = ["def split(path): return " + ", ".join(f"part_{n}(path)" for n in range(12))]
    calls += [f"def part_{n}(path): return split(path), split(path)" for n in range(12)]
    module = "\n".join(["import sys", "def add(path): sys.path.insert(0, path)", *calls, "add(split('a'))"])
    module += "\ndef add_part(path): add(path), split(path)\nadd_part('lib')\n"
    script = f"import paths\n{OF_LIB}"
    files = {f"lib/{name}": text for name, text in LIB.items()} | {"paths.py": module, "train.py": script}
    project, _ = open_project(str(write(tmp_path, files) / "train.py"))
    assert any(source.path.parent.name == "lib" for source in project.sources)


def test_a_pythonpath_folder_outside_the_project_is_not_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {f"own/{name}": text for name, text in LIB.items()} | {"project/train.py": OF_LIB})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    _, start = open_project(str(tmp_path / "project" / "train.py"))
    assert (start.root, start.folders) == (tmp_path / "project", [])


def test_a_module_is_found_in_this_folder_and_in_src(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {f"src/{name}": text for name, text in PACKAGE.items()} | {"src/pkg/train.py": OF_PACKAGE})
    monkeypatch.chdir(tmp_path)
    _, start = open_project(".", "pkg.train")
    assert (start.root, start.module, start.folders) == (tmp_path, "pkg.train", ["src"])
    assert open_project(".", "pkg.train", "src")[1].folders == []
    for wrong in ("train", "src.pkg.nothing", "a-b"):
        assert main(["check", "-m", wrong]) == main(["convert", "-m", wrong]) == 2


# ---- imports that are not found

MISSING = {
    "above": (LIB | {"tools/train.py": OF_LIB}, "train.py:1: `from lib.model import make`", "--root .."),
    "elsewhere": ({f"third/{k}": v for k, v in LIB.items()} | {"train.py": OF_LIB},
                  "train.py:1: `from lib", "PYTHONPATH=third"),
    "relative": ({"tools/train.py": f"from .gone import x\n{RELATIVE}", "tools/model.py": MODEL},
                 "tools/train.py:1: `from .gone import x`", "--root"),
    "part of a package": ({"pkg/__init__.py": "", "old/pkg/model.py": MODEL, "train.py": OF_PACKAGE},
                          "train.py:1: `from pkg.model import make`", "PYTHONPATH=old"),
    "in a package": ({"pkg/__init__.py": "", "pkg/parts/__init__.py": "", "pkg/model.py": MODEL,
                      "train.py": f"from pkg.parts.gone import x\n{OF_PACKAGE}"},
                     "train.py:1: `from pkg.parts.gone import x` finds no module", "git submodule"),
    "beyond the work tree": (PACKAGE | {"pkg/.git/": "", "pkg/train.py": RELATIVE},
                             "train.py:1: a relative import", "--root .."),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_an_import_that_is_not_found_is_reported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, place, remedy = MISSING[name]
    monkeypatch.setenv("PYTHONPATH", "")
    write(tmp_path, files)
    script = next(tmp_path / path for path in files if path.endswith("train.py"))
    main(["check", str(script)])
    checked = capsys.readouterr().err
    main(["convert", str(script), "--write", "--force"])
    page = "\n".join(path.read_text() for path in tmp_path.rglob("MULTI_GPU.md"))
    for text in (checked, capsys.readouterr().err, page):
        assert any(place in line and remedy in line for line in text.splitlines()), text


def test_installed_and_optional_modules_are_not_missing(tmp_path: Path) -> None:
    optional = "try:\n    from lib.fast import x\nexcept ImportError:\n    x = None\n"
    files = {"train.py": f"import numpy\nimport unknown_package\n{optional}{OF_LIB}", "old/numpy.py": "", **LIB}
    write(tmp_path, files | {"old/lib/fast.py": "x = 1\n"})
    assert missing_modules(open_project(str(tmp_path / "train.py"))[0].modules) == []


def test_a_module_that_the_runtime_no_longer_has_is_missing(tmp_path: Path) -> None:
    lines = "from retrofit.distributed.process_group import barrier\nfrom retrofit.distributed.loss import sum_loss\n"
    write(tmp_path, {"train.py": lines + OF_LIB, **LIB})
    (missing,) = missing_modules(open_project(str(tmp_path / "train.py"))[0].modules)
    assert missing.startswith("train.py:1: `from retrofit.distributed.process_group import barrier` finds no module")
    assert "`import retrofit.distributed as rd`" in missing


# ---- what is written, and that it starts


def run(folder: Path, *command: str, **variables: str) -> str:
    environ = {**os.environ, "PYTHON": sys.executable, "NPROC_PER_NODE": "2", "CUDA_VISIBLE_DEVICES": "", **variables}
    ended = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.usefixtures("forked_python")
def test_a_project_of_a_repository_starts_in_every_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    folder = write(tmp_path, LIB | {"projects/x/x.py": OF_LIB, "setup.py": ""})
    before, script = tree(folder), folder / "projects" / "x" / "x.py"
    assert main(["convert", str(script), "--write"]) == 0
    (debug,) = json.loads((folder / ".vscode" / "launch.json").read_text())["configurations"]
    assert debug["module"] == "projects.x.x" and "program" not in debug
    page = (folder / "MULTI_GPU.md").read_text()
    assert "`python -m projects.x.x ARGUMENTS`" in page and "`retrofit verify -m projects.x.x`" in page
    assert run(folder, "bash", str(folder / "train_torchrun.sh")).count("trained") == 1
    assert run(folder, sys.executable, "projects/x/x.py", PYTHONPATH=".").count("trained") == 1
    for path in [folder / "model.pt", *folder.rglob("*.pyc")]:
        path.unlink()
    assert main(["convert", str(script), "--undo"]) == 0
    assert tree(folder) == before


@pytest.mark.parametrize(
    ("files", "arguments", "starts"),
    [
        (STARTS["os.path"][0], ["tools/train.py"], ["exec", "tools/multigpu.py"]),
        (STARTS["both folders"][0], ["tools/train.py"], ['export PYTHONPATH="${PWD}""${PYTHONPATH:+']),
        ({f"src/{k}": v for k, v in PACKAGE.items()} | {"src/pkg/train.py": OF_PACKAGE}, ["-m", "pkg.train"],
         ['export PYTHONPATH="${PWD}"/src"${PYTHONPATH:+', " multigpu.py"]),
    ],
)  # fmt: skip
def test_the_launch_script_starts_each_of_these_ways(
    files: dict[str, str], arguments: list[str], starts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(write(tmp_path, files))
    monkeypatch.setenv("PYTHONPATH", "")
    before = tree(tmp_path)
    assert main(["convert", *arguments, "--write"]) == 0
    script = (tmp_path / "train_torchrun.sh").read_text()
    assert all(text in script for text in starts) and script.endswith(f'{" ".join(arguments)} "$@"\n')
    assert main(["check", *arguments]) == 0
    assert main(["convert", *arguments, "--undo"]) == 0
    assert tree(tmp_path) == before


def test_the_folders_that_a_shell_script_puts_on_the_path_are_named(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for name in ("bin", "data", "solver"):
        (tmp_path / "src" / name).mkdir(parents=True)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "data").mkdir()
    script = tmp_path / "src" / "bin" / "train.py"
    script.write_text("from loading import load\nfrom solver import Solver\n\nSolver(load()).train()\n")
    (tmp_path / "src" / "data" / "loading.py").write_text("def load():\n    return []\n")
    (tmp_path / "src" / "solver" / "solver.py").write_text("class Solver:\n    pass\n")
    line = "export PATH=$PWD:$PATH\nexport PYTHONPATH=$SRC/data/:$SRC/solver:/elsewhere/lib:$PYTHONPATH\n"
    (tmp_path / "recipe" / "path.sh").write_text(line)
    found = missing_modules(open_project(str(script))[0].modules)
    assert any("src/data:" in text and "src/solver, with --root" in text for text in found)
    assert any("path.sh sets PYTHONPATH" in text for text in found)

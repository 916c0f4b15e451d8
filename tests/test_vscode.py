"""The files of .vscode: strict JSON, flags that train.py has, and a debugger that stops every rank."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from debug_adapter import Editor

from train import get_arguments

ROOT = Path(__file__).resolve().parent.parent
# Evaluated in train.py while it stands at a breakpoint.
RANK = 'str(__import__("os").environ.get("RANK"))'
WORLD_SIZE = '__import__("retrofit.distributed").distributed.get_world_size()'
DEBUG_TIMEOUT_S = 120.0


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), f"a key comes twice in {pairs}"
    return dict(pairs)


def _read(name: str) -> dict[str, Any]:
    # json is strict: neither comments nor trailing commas, both of which VS Code itself would let pass.
    return json.loads((ROOT / ".vscode" / name).read_text(), object_pairs_hook=_no_duplicates)


def _configurations() -> dict[str, dict[str, Any]]:
    return {configuration["name"]: configuration for configuration in _read("launch.json")["configurations"]}


def _training_arguments(configuration: dict[str, Any]) -> list[str] | None:
    """Return the arguments that reach train.py; None for a configuration that runs something else."""
    arguments = [text.replace("${workspaceFolder}", str(ROOT)) for text in configuration.get("args", [])]
    if configuration.get("program") == "${workspaceFolder}/train.py":
        return arguments
    if not configuration.get("module", "").startswith("torch.distributed."):
        return None
    from torch.distributed import launch, run

    parsers = {"torch.distributed.run": run.parse_args, "torch.distributed.launch": launch.parse_args}
    parsed = parsers[configuration["module"]](arguments)
    assert parsed.training_script == str(ROOT / "train.py")
    assert int(parsed.nproc_per_node) == 2 and parsed.standalone
    return parsed.training_script_args


TRAINING = [name for name, configuration in _configurations().items() if _training_arguments(configuration)]


def test_the_names_are_those_of_the_documentation() -> None:
    assert list(_configurations()) == [
        "Debug DDP Training",
        "Debug Single-GPU Training",
        "Debug torchrun (2 processes)",
        "Debug torch.distributed.launch",
        "Debug Tests",
        "Debug Current Script",
    ]
    assert list(_configurations())[:4] == TRAINING


@pytest.mark.parametrize("name", _configurations())
def test_a_configuration_runs_in_the_project_and_in_a_terminal(name: str) -> None:
    configuration = _configurations()[name]
    assert (configuration["type"], configuration["request"]) == ("debugpy", "launch")
    assert (configuration["console"], configuration["cwd"]) == ("integratedTerminal", "${workspaceFolder}")
    assert ("program" in configuration) != ("module" in configuration)
    assert all(isinstance(value, str) for value in configuration.get("env", {}).values())


@pytest.mark.parametrize("name", TRAINING)
def test_the_arguments_are_flags_of_train_py(name: str) -> None:
    arguments = _training_arguments(_configurations()[name])
    assert arguments is not None
    options = get_arguments(arguments)
    assert options.workers == 0  # loader processes would be debugged too
    assert options.logdir.startswith("./log")  # ignored by git
    assert options.distributed == (name != "Debug Single-GPU Training")
    if options.distributed:
        assert options.dist_timeout >= 24 * 3600  # the others wait while one stands at a breakpoint


def test_ddp_training_is_debugged_without_a_launcher() -> None:
    configuration = _configurations()["Debug DDP Training"]
    assert configuration["env"] == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "12355",
    }
    expected = ["--distributed", "--local_rank", "0", "--layers", "50", "--model_type", "res50_ASPP_lorm"]
    assert configuration["args"][: len(expected)] == expected


def test_tasks_run_existing_files() -> None:
    tasks = {task["label"]: task for task in _read("tasks.json")["tasks"]}
    assert list(tasks) == [
        "Train (torchrun)",
        "Train (torch.distributed.launch)",
        "TensorBoard",
        "gpustat",
        "nvidia-smi",
        "Run tests",
    ]
    for task in tasks.values():
        assert task["type"] == "shell" and task["options"] == {"cwd": "${workspaceFolder}"}
        if task["command"] == "bash":
            assert (ROOT / task["args"][0]).is_file()


def test_settings_and_extensions_name_the_projects_python() -> None:
    assert _read("settings.json")["python.defaultInterpreterPath"] == "${workspaceFolder}/.venv/bin/python"
    assert {"ms-python.python", "ms-python.debugpy"} <= set(_read("extensions.json")["recommendations"])


def _line_after_the_ranks_have_met(train: Path) -> int:
    """Return the line of the statement in main() of train.py that follows setup_distributed(...)."""
    text = train.read_text()
    (main,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == "main")
    assert isinstance(main, ast.FunctionDef)
    calls = [number for number, node in enumerate(main.body) if "setup_distributed(" in ast.unparse(node)]
    assert calls, "main() of train.py has no statement with setup_distributed(...); choose another one here"
    return main.body[calls[0] + 1].lineno


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        ("Debug DDP Training", {"'0'"}),
        pytest.param("Debug Single-GPU Training", {"'None'"}, marks=pytest.mark.slow),
        ("Debug torchrun (2 processes)", {"'0'", "'1'"}),
        pytest.param("Debug torch.distributed.launch", {"'0'", "'1'"}, marks=pytest.mark.slow),
    ],
)
def test_a_breakpoint_is_hit_on_every_rank(name: str, ranks: set[str], tmp_path: Path) -> None:
    """The configuration as it stands, plus `--dry_run`: one step of training, and nothing is written."""
    configuration = _configurations()[name]
    configuration["args"].append("--dry_run")
    train = ROOT / "train.py"
    line = _line_after_the_ranks_have_met(train)
    with Editor(ROOT, tmp_path / "terminal.txt", DEBUG_TIMEOUT_S) as editor:
        editor.breakpoints[train] = [line]
        editor.debug(configuration)
        stops = editor.wait_for_stops(len(ranks))
        assert [stop.location() for stop in stops] == [(str(train), line)] * len(ranks)
        assert {stop.evaluate(RANK) for stop in stops} == ranks
        assert {stop.evaluate(WORLD_SIZE) for stop in stops} == {str(len(ranks))}
        for stop in stops:
            stop.resume()
        assert editor.wait_for_end()[0] == 0, editor.terminal()
        assert len(editor.stops) == len(ranks)

"""The tracer finds the runtime that the script trains with: the package, or one file under any name."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from retrofit.distributed.data.batch import Batch, batches_in_use, weight_of
from retrofit.verify.trace.runtime import batch_weight, is_in_runtime, loaded_functions


@pytest.fixture
def load(monkeypatch):
    """Return a function that puts a module with the given content among the imported ones."""

    def load(name, **content):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return load


@pytest.fixture
def without_package(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("retrofit.distributed")]:
        monkeypatch.delitem(sys.modules, name)


def says(weight):
    return lambda *inputs: weight


def test_the_package_is_a_runtime():
    assert batch_weight() == 1.0 and loaded_functions("weight_of") == [weight_of]
    iteration = object()
    batches_in_use[iteration] = Batch(length=3, full=4, weight=6 / 7)
    try:
        assert batch_weight() == 6 / 7
    finally:
        del batches_in_use[iteration]


def test_a_script_without_a_runtime(without_package):
    assert loaded_functions("weight_of") == [] and batch_weight() == 1.0


@pytest.mark.parametrize("name", ["multigpu", "pkg.multigpu", "renamed"])
def test_one_file_is_a_runtime_by_what_it_defines(without_package, load, name):
    load(name, weight_of=says(1.5))
    assert batch_weight() == 1.0, "a file without the mark is the user's own"
    load(name, weight_of=says(1.5), RETROFIT_RUNTIME="1.0")
    assert batch_weight() == 1.5


def test_of_two_copies_the_one_with_a_batch_in_use_counts(load):
    load("multigpu", weight_of=says(1.0), RETROFIT_RUNTIME="1.0")
    load("pkg.multigpu", weight_of=says(0.5), RETROFIT_RUNTIME="1.0")
    assert batch_weight() == 0.5 and len(loaded_functions("weight_of")) == 3


def test_a_runtime_whose_names_are_imported_elsewhere_counts_once(without_package, load):
    runtime = load("multigpu", weight_of=says(1.5), RETROFIT_RUNTIME="1.0")
    load("train", weight_of=runtime.weight_of, RETROFIT_RUNTIME=runtime.RETROFIT_RUNTIME)  # from multigpu import *
    assert batch_weight() == 1.5


def test_only_modules_of_the_package_are_taken_for_it(without_package, load):
    load("retrofit.distributed_tools", weight_of=says(0.5))
    assert batch_weight() == 1.0
    load("retrofit.distributed.data.batch", weight_of=says(0.5))
    assert batch_weight() == 0.5


def test_lazily_importing_modules_are_not_touched(load, monkeypatch):
    def load_more(name):
        raise AssertionError(f"asked for {name}")

    load("lazy", __getattr__=load_more)
    monkeypatch.setitem(sys.modules, "blocked", None)
    assert loaded_functions("weight_of") == [weight_of]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("multigpu.py", 'import torch\n\nRETROFIT_RUNTIME = "1.0"\n', True),
        ("pkg/renamed.py", 'RETROFIT_RUNTIME: str = "1.0"\n', True),
        ("train.py", "from multigpu import RETROFIT_RUNTIME\nprint(RETROFIT_RUNTIME)\n", False),
        ("train.py", 'version = "RETROFIT_RUNTIME = 1"\n', False),
        ("retrofit/distributed/data/batch.py", None, True),
        ("retrofit/distributed_tools.py", None, False),
        ("gone.py", None, False),
    ],
)
def test_files_of_a_runtime(tmp_path, path, text, expected):
    project = tmp_path / "retrofit" / "distributed"  # what is above the project does not count
    if text is not None:
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    assert is_in_runtime(path, str(project)) is expected

"""The layers of the repository: who may import whom, and that importing does no work."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from library_tables import FEWEST, tables_in

ROOT = Path(__file__).resolve().parents[1]
RUNTIME = sorted((ROOT / "retrofit" / "distributed").rglob("*.py"))
TRACER = sorted((ROOT / "retrofit" / "verify" / "trace").rglob("*.py"))
SEGMENTATION = sorted((ROOT / "segmentation").rglob("*.py"))
# Stdlib of a newer Python than 3.9 has no list there.
STANDARD_LIBRARY = getattr(sys, "stdlib_module_names", None) or {
    *sys.builtin_module_names,
    *(path.stem for path in Path(ast.__file__).parent.iterdir() if path.suffix in ("", ".py")),
    *(path.name.partition(".")[0] for path in Path(ast.__file__).parent.glob("lib-dynload/*")),
} - {"site-packages"}
NEWER_NODES = {
    *("Match", "MatchAs", "MatchClass", "MatchMapping", "MatchOr", "MatchSequence", "MatchSingleton", "MatchStar"),
    *("MatchValue", "match_case", "TryStar", "TypeAlias", "TypeVar", "TypeVarTuple", "ParamSpec", "TemplateStr"),
}
CATALOG = "retrofit.rules.catalog"  # the texts of the rules, which verify shows too
# Tables with dotted names outside torch_api and python_api: the functions that a rule writes; files.
OTHER_TABLES = {"FUNCTIONS", "MARKS"}
WORDS_OF_DISTRIBUTION = re.compile(
    r"\b(ranks?|(local|node|global)_rank|world_?size|world size|distributed|distribution|ddp|fsdp|nccl|gloo|torchrun|"
    r"(all_?)?reduce[ds]?|all_?gather|process_?group|process group|num_gpus|gpu count|gpus per|nproc_per_node|"
    r"shard(s|ed|ing)?)\b",
    re.IGNORECASE,
)


def imports(path):
    """Return the absolute names of everything that `path` imports, relative imports resolved."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{module}.{alias.name}" for alias in node.names]
    return found


def is_within(name, package):
    return name == package or name.startswith(package + ".")


def outside(path, *packages, standard_library=True):
    return [
        name
        for name in imports(path)
        if not any(is_within(name, package) for package in packages)
        and not (standard_library and name.split(".")[0] in STANDARD_LIBRARY)
    ]


def test_the_files_are_found():
    assert len(RUNTIME) > 10 and len(TRACER) > 10 and len(SEGMENTATION) > 5


def test_environment_needs_the_standard_library_only():
    assert outside(ROOT / "retrofit" / "distributed" / "process" / "environment.py") == []


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: path.stem)
def test_the_runtime_imports_torch_the_standard_library_and_itself(path):
    extras = ("deepspeed",) if path.stem in ("zero", "zero_state") else ()  # imported in a function, if it is asked for
    assert outside(path, "torch", "retrofit.distributed", *extras) == []


@pytest.mark.parametrize("path", SEGMENTATION, ids=lambda path: str(path.relative_to(ROOT)))
def test_segmentation_imports_neither_the_kit_nor_torch_distributed(path):
    names = imports(path)
    assert [name for name in names if is_within(name, "retrofit") or is_within(name, "torch.distributed")] == []
    assert [name for name in names if is_within(name, "torch.nn.parallel") or "DistributedSampler" in name] == []
    lines = path.read_text(encoding="utf-8").splitlines()
    words = [
        (number, found.group())
        for number, line in enumerate(lines, 1)
        for found in WORDS_OF_DISTRIBUTION.finditer(line)
    ]
    assert words == []


def tools(*names):
    """Return the files of the kit's command-line side, without the worked examples, which are scripts of users."""
    folder = ROOT / "retrofit"
    files = [path for name in names for path in [*folder.glob(f"{name}.py"), *folder.glob(f"{name}/**/*.py")]]
    made = folder / "convert" / "added" / "multigpu.py"  # from the runtime library
    return [path for path in files if path != made and folder / "rules" / "refusals" / "examples" not in path.parents]


@pytest.mark.parametrize("layer", ["analysis", "training", "rules", "check", "convert"])
def test_source_tools_never_import_torch(layer):
    for path in tools(layer):
        assert [name for name in imports(path) if is_within(name, "torch")] == [], path


@pytest.mark.parametrize(
    ("layer", "above"),
    [
        ("analysis", ["training", "rules", "check", "convert", "verify", "doctor", "distributed", "prove", "cli"]),
        ("training", ["rules", "check", "convert", "verify", "doctor", "distributed", "prove", "cli"]),
        ("rules", ["check", "convert", "verify", "doctor", "distributed", "prove", "cli"]),
        ("check", ["verify", "doctor", "distributed", "prove", "cli"]),
        ("convert", ["check", "verify", "doctor", "distributed", "prove", "cli"]),
        ("verify", ["rules", "check", "convert", "doctor", "prove", "cli"]),
        ("prove", ["check", "doctor", "distributed", "cli"]),
        ("why", ["training", "rules", "check", "convert", "prove", "doctor", "plan", "cli"]),
        ("plan", ["training", "rules", "check", "convert", "prove", "cli"]),
        ("doctor", ["training", "rules", "check", "convert", "verify", "prove", "cli"]),
    ],
)
def test_no_layer_imports_a_higher_one(layer, above):
    for path in tools(layer):
        names = [name for name in imports(path) if not (layer == "verify" and is_within(name, CATALOG))]
        assert [name for name in names for up in above if is_within(name, f"retrofit.{up}")] == [], path


def test_the_analysis_has_no_names_of_torch():
    words = re.compile(r"torch|numpy|tqdm|tensors?\b|cuda|DataParallel|DataLoader", re.IGNORECASE)
    for path in tools("analysis"):
        found = words.findall(path.read_text(encoding="utf-8"))
        assert path.stem == "runtime_names" or found == [], path


def test_the_meaning_of_library_names_is_in_one_place():
    scattered = [table for table in tables_in(ROOT) if not table.is_central and len(table.dotted) >= FEWEST]
    assert {table.title for table in scattered} <= OTHER_TABLES, "move it to retrofit/training/torch_api"
    assert sum(table.is_central for table in tables_in(ROOT)) > 100


def test_every_name_of_the_one_table_is_used():
    texts = [path.read_text(encoding="utf-8") for path in tools("analysis", "training", "rules")]
    words = Counter(word for text in texts for word in re.findall(r"\w+", text))
    for table in (table for table in tables_in(ROOT) if table.is_central):
        assert words[table.title] > 1, table


def test_a_scattered_table_is_found(tmp_path):
    module = tmp_path / "retrofit" / "rules" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        'A = {"torch.save", "torch.load", "numpy.save"}\n'
        'B = {f"torch.{name}" for name in ("zeros", "ones", "full")}\n'
        'METHODS = {"detach", "cpu", "item"}\n'
        'TWO = {"torch.save": 1, "torch.load": 2}\n'
        "VALID = ['torch.save(a, b)', 'torch.load', 'torch.save', 'torch.zeros']\n"
    )
    assert [(table.title, len(table.names), len(table.dotted)) for table in tables_in(tmp_path)] == [
        ("A", 3, 3),
        ("B", 3, 3),
        ("METHODS", 3, 0),
    ]


def test_the_kit_and_the_launch_scripts_do_not_import_each_other():
    launch = list((ROOT / "scripts").rglob("*.py"))
    assert len(launch) > 3
    for path in launch:  # they run before anything is installed
        assert outside(path, "scripts", "retrofit.packages.installation") == [], path
    for path in (ROOT / "retrofit").rglob("*.py"):
        assert [name for name in imports(path) if is_within(name, "scripts")] == [], path


@pytest.mark.parametrize("path", RUNTIME, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_runtime_does_not_import_the_tracer(path):
    assert [name for name in imports(path) if is_within(name, "retrofit.verify")] == []


@pytest.mark.parametrize("path", TRACER, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_tracer_imports_torch_the_standard_library_the_runtime_and_itself(path):
    """It is loaded into the traced process, where the packages of `verify` need not be."""
    assert outside(path, "torch", "retrofit.distributed", "retrofit.verify.trace") == []


@pytest.mark.parametrize("layer", ["analysis", "training", "rules", "convert", "check"])
def test_no_node_is_asked_for_that_python_3_9_lacks(layer):
    """vermin does not know them; `type(node).__name__ == "Match"` does without."""
    for path in sorted((ROOT / "retrofit" / layer).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "ast":
                assert node.attr not in NEWER_NODES, f"{path}:{node.lineno}: ast.{node.attr}"


def test_the_folders_of_the_kit_are_small():
    folders = {path.parent for path in (ROOT / "retrofit").rglob("*.py")}
    sizes = {path: sum(entry.name != "__pycache__" for entry in path.iterdir()) for path in folders}
    assert {path: size for path, size in sizes.items() if size > (12 if "verify" in path.parts else 15)} == {}


def test_an_import_that_breaks_a_layer_is_found(tmp_path, monkeypatch):
    module = tmp_path / "retrofit" / "distributed" / "bad.py"
    module.parent.mkdir(parents=True)
    module.write_text(
        "import numpy.linalg\nfrom .. import cli\nfrom . import data\nfrom os import path\ndef f():\n    import yaml\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    assert outside(module, "torch", "retrofit.distributed") == ["numpy.linalg", "retrofit.cli", "yaml"]


IMPORT = """
import json, os, signal, sys, threading
handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
before = dict(os.environ)
if len(sys.argv) > 2:
    import torch  # its own work at import time is not ours
    before = dict(os.environ)
    seed = torch.initial_seed()
for name in sys.argv[1].split(","):
    __import__(name)
report = {
    "environment": dict(os.environ) != before,
    "threads": threading.active_count(),
    "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] != handlers,
    "modules": sorted({name.split(".")[0] for name in sys.modules}),
}
if len(sys.argv) > 2:
    report["cuda"] = torch.cuda.is_initialized()
    report["group"] = torch.distributed.is_initialized()
    report["seed"] = torch.initial_seed() != seed
print(json.dumps(report))
"""


def report_of_import(*modules, with_torch=False):
    arguments = [sys.executable, "-c", IMPORT, ",".join(modules), *(["torch"] if with_torch else [])]
    result = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stderr == "", "importing must not print"
    assert len(result.stdout.splitlines()) == 1, "importing must not print"
    return json.loads(result.stdout)


def test_import_retrofit_imports_nothing_heavy():
    report = report_of_import("retrofit")
    assert set(report["modules"]) & {"torch", "numpy", "torchvision", "libcst", "PIL", "yaml"} == set()


def test_the_command_line_loads_what_a_command_needs_only_when_it_runs():
    report = report_of_import("retrofit.cli")
    assert set(report["modules"]) & {"torch", "numpy", "matplotlib", "rich", "psutil", "libcst"} == set()


def test_importing_the_runtime_and_the_tracer_does_no_work():
    modules = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in [*RUNTIME, *TRACER])
    report = report_of_import(*modules, with_torch=True)
    assert not report["environment"], "an environment variable was changed"
    assert not report["cuda"], "CUDA was initialised"
    assert not report["group"] and not report["seed"] and not report["handlers"]
    assert report["threads"] == 1

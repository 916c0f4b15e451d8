"""The runtime file: the core of `retrofit.distributed` as one module, which a converted project receives.

  python -m retrofit.convert.bundle             write retrofit/convert/added/multigpu.py
  python -m retrofit.convert.bundle --check     exit with status 1 where it is not what would be written

The modules follow each other in the order of MODULES, without their imports of each other. Of their functions and
classes those are left out that nothing reaches from what the modules offer in `__all__`.
"""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrofit import __version__
from retrofit.analysis.files.runtime_names import FILE_MARK, FILE_MODULE
from retrofit.analysis.files.runtime_names import MODULES as SUBJECTS
from retrofit.packages.installation import DISTRIBUTION

from .added.runtime_file import TEXT, sealed

LIBRARY = Path(__file__).resolve().parents[1] / "distributed"
FUTURE = ("__future__", "annotations")
LINE_LENGTH = 120
PRODUCTION = {"checkpoint", "job", "strategies"}  # what is not in the file
COMMENT: Any = {"initial_indent": "# ", "subsequent_indent": "# "}

# A module follows those that it imports.
MODULES = (
    "process/environment", "process/options", "failure/collective_calls", "failure/deadlock", "failure/watchdog",
    "process/process_group", "process/measure", "collectives", "data/random_state", "failure/shown_figures", "output",
    "process/devices",
    "data/batch", "data/sharding", "data/wrapped", "data/streams", "data/batches_in_turn", "data/loaders", "data/draws",
    "learning_rate", "evaluation", "loss", "ddp/unwrap", "ddp/bit_hash", "ddp/gradients", "ddp/sync_batchnorm",
    "ddp/forward_guard",
    "ddp/consistency", "ddp/data_parallel", "ddp/entry_points", "ddp/wrapper", "ddp/model", "launcher",
)  # fmt: skip
# What is added to them: by `retrofit convert --with NAME`, or for a script that uses it.
FEATURES = {
    "search": ("search",),
    "fsdp": (
        "strategies/layers", "checkpoint/sharded_state", "strategies/converted/torch_fsdp",
        "strategies/converted/blocks", "strategies/converted/rendezvous", "strategies/converted/replaced",
        "strategies/converted/states", "strategies/converted/sharded_model",
    ),
}  # fmt: skip

HEAD = '''\
"""{mark}: the runtime of {distribution} {version}.

This file was put here by `retrofit convert` and belongs to your project: commit it. It needs torch alone. Started
without a launcher every function gives back what it was given, so that the script trains on one GPU as before. It is
generated from `retrofit/distributed`; in the kit's repository `python -m retrofit.convert.bundle` writes it.

`retrofit convert --update-runtime` writes the file of the kit that is installed in its place; what you change here
yourself is not overwritten without --force. The names are those of the library: with the kit installed,
`import retrofit.distributed as rd` does the same as `import {name} as rd`.

{contents}
"""

from __future__ import annotations

'''
TAIL = """\
# In the library the functions are in modules by subject: rd.loss.batch_sum.
{subjects}


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"{{name}} is not in {{__file__}}; a newer kit may have it (`retrofit convert --update-runtime`), the library "
        "has strategies, checkpoints and jobs: install the kit and `import retrofit.distributed as rd`"
    )
"""


class BundleError(Exception):
    """The modules cannot be put into one file; the message says what to change in them."""


@dataclass
class Part:
    """A top-level statement of a module: its text, the names that it defines and those that it uses."""

    module: str
    text: str
    defines: set[str]  # one that defines nothing is always kept
    uses: set[str]
    space: str  # the lines between it and what it follows

    @property
    def is_command(self) -> bool:
        return self.text.startswith("if __name__ ==")


@dataclass
class Module:
    """A module without its imports. `exports` is its `__all__`."""

    name: str
    subject: str
    parts: list[Part] = field(default_factory=list)
    exports: list[str] = field(default_factory=list)
    imports: set[tuple[str, str]] = field(default_factory=set)  # (module, name) or (module, "")


def bundle(modules: Iterable[str] = MODULES, library: Path = LIBRARY, features: Collection[str] = ()) -> str:
    """Return the text of the runtime file, with these of FEATURES. Raises BundleError."""
    read = [read_module(library, name) for name in _in_order(modules, features)]
    _check(read)
    wanted = _reached(read, [name for path in library.glob("**/__init__.py") for name in _exports(path)])
    sections = [*filter(None, (_section(module, wanted) for module in read))]
    used = {name for module in read for part in module.parts if _is_kept(part, wanted) for name in part.uses}
    commands = [part.text for module in read for part in module.parts if part.is_command]
    return sealed("\n\n\n".join([_head(read, used, features), *sections, _tail(), *commands]) + "\n")


def _in_order(modules: Iterable[str], features: Collection[str]) -> list[str]:
    """Return the modules and those of the features, before the launcher, which is the file's command."""
    added = [name for feature in sorted(features) for name in FEATURES[feature]]
    names = list(modules)
    return names[:-1] + added + names[-1:] if added else names


def read_module(library: Path, name: str) -> Module:
    """Return a module's parts. Raises BundleError for what cannot be in one file with other modules."""
    path = library / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    module = Module(name, (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " "))
    end = 0
    for number, statement in enumerate(tree.body):
        start, end = end, statement.end_lineno or 0
        if number == 0 and ast.get_docstring(tree) is not None:
            continue
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            module.imports |= set(_imports(statement, path))
        elif _is_all(statement):
            module.exports = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        else:
            module.parts.append(_part(name, statement, "\n".join(lines[start:end])))
    return module


def _imports(statement: ast.Import | ast.ImportFrom, path: Path) -> Iterator[tuple[str, str]]:
    """Yield what a statement imports from outside the library."""
    place = f"{path.name}:{statement.lineno}"
    renamed = [alias for alias in statement.names if alias.asname]
    if isinstance(statement, ast.Import):
        yield from ((alias.name + (f" as {alias.asname}" if alias.asname else ""), "") for alias in statement.names)
    elif statement.level == 0:
        yield from ((statement.module or "", alias.name) for alias in statement.names)
        if renamed:
            raise BundleError(f"{place}: imports {renamed[0].name} under another name; use its own")
    elif not statement.module or renamed:
        raise BundleError(f"{place}: imports a module of the library, or by another name; import its functions")


def _is_all(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _part(module: str, statement: ast.stmt, text: str) -> Part:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        defines = {statement.name}
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        defines = {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
    else:
        defines = set()
    nodes = list(ast.walk(statement))
    inner = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level]
    if inner:
        raise BundleError(f"{module}.py:{inner[0].lineno}: imports the library inside a function; do it at the top")
    uses = {node.id for node in nodes if isinstance(node, ast.Name)} - defines
    own = text.lstrip("\n")
    return Part(module, own, defines, uses | _quoted(nodes), "\n" * (1 + len(text) - len(own)))


def _quoted(nodes: list[ast.AST]) -> set[str]:
    """Return names in annotations that are texts."""
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _check(modules: list[Module]) -> None:
    """Raise BundleError where a name would mean two things."""
    owner: dict[str, str] = {}
    for module in modules:
        names = {name: f"{module.name}.{name}" for part in module.parts for name in part.defines}
        names.update({_binds(source, name): f"{source}.{name}" for source, name in module.imports})
        for name, meaning in names.items():
            if owner.setdefault(name, meaning) != meaning and not _is_same_package(owner[name], meaning):
                raise BundleError(f"{name} is {owner[name]} and {meaning}; give one of them another name")


def _is_same_package(one: str, other: str) -> bool:
    """Return whether two plain imports bind the same package: `import torch` and `import torch.distributed`."""
    return one.endswith(".") and other.endswith(".") and one.split(".")[0] == other.split(".")[0]


def _exports(path: Path) -> list[str]:
    """Return the `__all__` of a package, [] where it has none."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return next((ast.literal_eval(one.value) for one in body if _is_all(one)), [])  # type: ignore[attr-defined]


def _reached(modules: list[Module], exports: list[str]) -> set[str]:
    """Return the names that the exported functions need, directly and indirectly."""
    uses = {name: part.uses for module in modules for part in module.parts for name in part.defines}
    waiting = [*exports, *(name for module in modules for name in module.exports)]
    waiting += [name for module in modules for part in module.parts if not part.defines for name in part.uses]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached and name in uses:
            reached.add(name)
            waiting += uses[name]
    return reached


def _is_kept(part: Part, wanted: set[str]) -> bool:
    return not part.defines or bool(part.defines & wanted)


def _section(module: Module, wanted: set[str]) -> str:
    parts = [part for part in module.parts if _is_kept(part, wanted) and not part.is_command]
    if not parts:
        return ""
    text = "\n".join(["# " + "-" * (LINE_LENGTH - 2), *textwrap.wrap(module.subject, LINE_LENGTH, **COMMENT)])
    for number, part in enumerate(parts):
        text += ("\n\n\n" if number == 0 else part.space) + part.text
    return text


def _head(modules: list[Module], used: set[str], features: Collection[str]) -> str:
    subjects = [module.name.rpartition("/")[2].replace("_", " ") for module in modules]
    contents = textwrap.fill(f"In this order: {', '.join(subjects)}.", LINE_LENGTH)
    values = {"mark": FILE_MARK, "version": __version__, "distribution": DISTRIBUTION, "name": FILE_MODULE}
    head = HEAD.format(**values, contents=contents)
    imports = {(source, name) for module in modules for source, name in module.imports if _binds(source, name) in used}
    imports |= {("sys", ""), ("typing", "Any")}
    own = {one for one in imports if one[0].partition(".")[0] != "torch"}
    lines = [
        *_import_lines(own - {FUTURE}),
        "",
        *_import_lines(imports - own),
        "",
        f'RETROFIT_RUNTIME = "{__version__}"',
        *([f'RETROFIT_WITH = "{" ".join(sorted(features))}"'] if features else []),
    ]
    return head + "\n".join(lines)


def _binds(source: str, name: str) -> str:
    """Return the name that an import gives a meaning to."""
    return name or source.rpartition(" as ")[2].partition(".")[0]


def _import_lines(imports: set[tuple[str, str]]) -> list[str]:
    named: dict[str, set[str]] = defaultdict(set)
    for source, name in imports:
        if name:
            named[source].add(name)
    lines = [f"import {source}" for source, name in sorted(imports) if not name]
    for source, names in sorted(named.items()):
        line = f"from {source} import {', '.join(sorted(names, key=_isort_key))}"
        if len(line) > LINE_LENGTH:
            line = line.replace(" import ", " import (\n    ").replace(", ", ",\n    ") + ",\n)"
        lines.append(line)
    return lines


def _isort_key(name: str) -> tuple[int, str]:
    """Return the place of an imported name among others: constants, classes, functions."""
    return (0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2, name)


def _tail() -> str:
    """Return what makes rd.loss.batch_sum a name of this one module, too."""
    names = sorted(SUBJECTS - PRODUCTION)
    lines = [" = ".join([*names[start : start + 6], "sys.modules[__name__]"]) for start in range(0, len(names), 6)]
    return TAIL.format(subjects="\n".join(lines)).rstrip()


def main(argv: list[str] | None = None) -> int:
    """Write the file, or compare it; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m retrofit.convert.bundle", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit status 1 where the file is not current"
    )
    args = parser.parse_args(argv)
    try:
        text = bundle()
    except BundleError as error:
        print(f"bundle: error: {error}", file=sys.stderr)
        return 2
    if not args.check:
        TEXT.write_text(text, encoding="utf-8")
        print(f"wrote {TEXT}: {text.count(chr(10))} lines")
        return 0
    if TEXT.read_text(encoding="utf-8") != text:
        print(f"{TEXT} is not current; run `python -m retrofit.convert.bundle`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The facts about one script that its MULTI_GPU.md names: arguments, batch, epochs, BatchNorm, evaluations."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from retrofit.analysis.calls import last_name
from retrofit.analysis.files.source import Source
from retrofit.analysis.files.standard_library import standard_modules
from retrofit.analysis.flow.reachability import reached_calls, reached_nodes
from retrofit.analysis.nodes import walk
from retrofit.training import Project
from retrofit.training.launch.command_options import decorator_calls, defined_flags, function_parameters
from retrofit.training.optimizer.rate_rules import rate_rules

EPOCHS = re.compile(r"(n|nb|num|max|total|train)?_?epochs?|n_?iter")
BATCH = {"batch_size", "batchsize", "train_batch_size", "bs", "b", "batch"}
BATCHNORM = re.compile(r"batch_?norm", re.IGNORECASE)
# Packages that bring no models with BatchNorm layers; any other may.
WITHOUT_MODELS = {
    "PIL", "cv2", "matplotlib", "numpy", "pandas", "scipy", "sklearn", "tensorboard", "tensorboardX", "torch", "tqdm",
    "wandb", "yaml",
}  # fmt: skip
OF_TORCHVISION = {"datasets", "io", "transforms", "utils"}
MULTIPLE = 8  # a global batch that 2, 4 and 8 processes can share


@dataclass(frozen=True)
class Option:
    """An argument of the script. `default` is None where it has none, or none that can be read."""

    flags: tuple[str, ...]
    name: str
    default: object = None
    is_needed: bool = False

    @property
    def flag(self) -> str:
        """The flag to show, the long one where there are two."""
        return next((flag for flag in self.flags if flag.startswith("--")), self.flags[0])

    def words(self, value: str | None = None) -> list[str]:
        """Return what a command says to give the argument a value; without one a word in capitals, to be replaced."""
        return [*([self.flag] if self.flag.startswith("-") else []), value or self.name.upper()]


@dataclass(frozen=True)
class ScriptFacts:
    """What is known of a script; the default is a script of which nothing is known."""

    options: tuple[Option, ...] = ()
    batch: Option | None = None
    epochs: Option | None = None
    may_have_batchnorm: bool = True
    is_sharded: bool = True  # some evaluation is split across the ranks
    full_evaluations: tuple[str, ...] = ()  # why evaluations run in full on every rank
    rate_rules: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # scripts that are converted with this one

    @property
    def verify_arguments(self) -> list[str]:
        """The arguments for `retrofit verify`: two epochs, a batch that can be split, and what the script needs."""
        values = {self.epochs: "2"}
        if self.batch:
            values[self.batch] = str(_splittable(self.batch.default))
        given = dict.fromkeys(option for option in self.options if option.is_needed or option in values)
        return [word for option in given for word in option.words(values.get(option))]


def script_facts(project: Project) -> ScriptFacts:
    """Return what the page of a project says about its script."""
    options = _options(project)
    reasons = [evaluation.reason for evaluation in project.evaluations]
    return ScriptFacts(
        options,
        batch=_batch_option(project, options),
        epochs=next((option for option in options if EPOCHS.fullmatch(option.name.lower())), None),
        may_have_batchnorm=any(_may_have_batchnorm(project, source) for source in project.sources),
        is_sharded="" in reasons,
        full_evaluations=tuple(dict.fromkeys(reason for reason in reasons if reason)),
        rate_rules=tuple(dict.fromkeys(text for _, text in rate_rules(project))),
    )


def _options(project: Project) -> tuple[Option, ...]:
    """Return the arguments that the code defines, in source order."""
    if not project.parsings:
        named = [*defined_flags(project), *function_parameters(project)]
        return tuple(
            [option for option in map(_option, decorator_calls(project)) if option]
            + [_of_parameter(name, default) for name, default in named]
        )
    calls = [
        (scope.source.place(node), node)
        for node, scope in reached_calls(project.analysis)
        if last_name(node) == "add_argument"
    ]
    found = [_option(call) for _, call in sorted(calls, key=lambda placed: placed[0])]
    return tuple(option for option in found if option)


def _option(call: ast.Call) -> Option | None:
    flags = tuple(part.value for part in call.args if isinstance(part, ast.Constant) and isinstance(part.value, str))
    if not flags:
        return None
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    known = {name: value.value for name, value in given.items() if isinstance(value, ast.Constant)}
    long = next((flag for flag in flags if flag.startswith("--")), flags[0])
    is_positional = not flags[0].startswith("-")
    return Option(
        flags,
        name=str(known.get("dest") or long.lstrip("-").replace("-", "_")),
        default=known.get("default"),
        is_needed=bool(known.get("required")) or (is_positional and known.get("nargs") not in ("?", "*")),
    )


def _of_parameter(flag: str, default: ast.expr | None) -> Option:
    known = default.value if isinstance(default, ast.Constant) else None
    return Option((flag,), flag.lstrip("-").replace("-", "_"), known, is_needed=default is None)


def _batch_option(project: Project, options: tuple[Option, ...]) -> Option | None:
    """Return the argument that a training loader's batch size is read from, else the one that is named so."""
    read = {
        node.attr
        for node, scope in reached_nodes(project.analysis)
        if isinstance(node, ast.Attribute) and (node, scope) in project.batch_sizes
    }
    for names in (read, BATCH):
        found = [option for option in options if option.name in names and option.flags[0].startswith("-")]
        if len(found) == 1:
            return found[0]
    return None


def _splittable(default: object) -> int:
    """Return the default batch, or the next larger one that several processes can share."""
    size = int(default) if isinstance(default, (int, str)) and str(default).isdigit() else 1
    return -(-max(size, 1) // MULTIPLE) * MULTIPLE


def _may_have_batchnorm(project: Project, source: Source) -> bool:
    return bool(BATCHNORM.search(source.text)) or any(
        not _is_without_models(project, source, name) for name in _imported(source)
    )


def _imported(source: Source) -> Iterator[str]:
    """Yield the full names that a file imports from outside its own package."""
    for node in walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_without_models(project: Project, source: Source, name: str) -> bool:
    parts = name.split(".")
    if parts[0] == "torchvision":
        return parts[1:2] != [] and parts[1] in OF_TORCHVISION
    is_own = project.modules.find(parts[0], 0, source) is not None
    return is_own or parts[0] in WITHOUT_MODELS or parts[0] in standard_modules()
